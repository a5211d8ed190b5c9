"""Every link of one recorded step, for one run, and who is right where there are two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from align.config.normalise import effective
from align.core.errors import RunError
from align.core.finding import Side
from align.core.text import Text
from align.objective.errors import ObjectiveError
from align.referee.captured_updates import recorded_updates
from align.referee.examine import Examined, examine, reports
from align.referee.link import Link, LinkVerdict
from align.referee.probability_link import probability_link
from align.referee.report import Report
from align.referee.reward_links import advantage_link, reward_link
from align.referee.step_batch import batch_steps, step_batch
from align.referee.update_links import loss_links, norm_link, rate_link
from align.referee.weights_link import Recomputation, weights_link
from dumps.store.run_data import RunData


@dataclass(frozen=True, slots=True)
class Ruling:
    """One step of one run, link by link in the order of the computation."""

    run: str
    step: int
    links: tuple[Link, ...]

    @property
    def differs(self) -> bool:
        """Whether a link is not what the configuration declares."""
        return any(link.verdict is LinkVerdict.DIFFERS for link in self.links)


def rule(run: RunData, step: int, given: Recomputation | None = None) -> Ruling:
    """Recompute every link of a step in float64.

    Args:
        given: the weights the step began with, and how much is computed again from them.

    Raises:
        RunError: The run records no batch of that step.
    """
    batch = step_batch(run, step)
    if batch is None:
        raise _no_step(run, step)
    config = effective(run.configs, run.run.manifest)
    links = [reward_link(batch, config)]
    links += [weights_link(batch, config, given)] if given is not None else []
    links.append(probability_link(batch, config))
    try:
        links.append(advantage_link(batch, config))
    except ObjectiveError as error:
        unknown = Text(str(error), str(error))
        links.append(Link("advantages", unknown, LinkVerdict.UNKNOWN))
    examined = examine(Side.CANDIDATE, run, config, step)
    judged: list[Report] = []
    if isinstance(examined, Examined):
        judged = list(reports(run, config, examined.objective, step))
    links += loss_links(examined, judged)
    links += [norm_link(list(recorded_updates(run, step))), rate_link(run, config, step)]
    return Ruling(run.run.label, step, tuple(links))


def who_is_right(reference: Ruling, candidate: Ruling) -> Sequence[tuple[str, Text]]:
    """Say of every link that both runs record which of them computes what it declares."""
    theirs = {link.name: link.verdict for link in candidate.links}
    return [
        (link.name, _WHO[link.verdict, theirs[link.name]])
        for link in reference.links
        if (link.verdict, theirs.get(link.name)) in _WHO
    ]


def _no_step(run: RunData, step: int) -> RunError:
    steps = batch_steps(run)
    if not steps:
        return RunError(
            where=run.run.label,
            problem="records no batch of any step (trainer_inputs/STEP.safetensors)",
            fix="record it with `align train` or `align capture`",
        )
    nearest = min(steps, key=lambda each: abs(each - step))
    return RunError(
        where=run.run.label,
        key=f"step {step}",
        problem=f"is not recorded; {len(steps)} steps from {steps[0]} to {steps[-1]} are",
        fix=f"use --step {nearest}",
    )


_RIGHT, _WRONG = LinkVerdict.AS_DECLARED, LinkVerdict.DIFFERS
_WHO = {
    (_RIGHT, _RIGHT): Text("both as declared", "两侧均符合声明"),
    (_RIGHT, _WRONG): Text("the reference is right", "参考正确"),
    (_WRONG, _RIGHT): Text("the candidate is right", "被测正确"),
    (_WRONG, _WRONG): Text("neither is as declared", "两侧均不符合声明"),
}
