"""Whether recorded rollouts fit a run, before it trains on the first of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dumps.inject.match import assign
from dumps.inject.plan import ReplayPlan, Source
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt, Step

STOPPED_BY_LENGTH = ("length", "max_tokens", "abort")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a run asks of the rollouts it trains on; what is not known is None or empty.

    Args:
        num_samples: responses a prompt.
        max_prompt_length, max_response_length: in tokens.
        eos_ids: ids that end a response.
        asks_log_probs: whether it trains on, or measures, the engine's log_probs.
    """

    num_samples: int | None = None
    max_prompt_length: int | None = None
    max_response_length: int | None = None
    eos_ids: frozenset[int] = frozenset()
    asks_log_probs: bool = False


def absent_steps(recorded: Sequence[int], wanted: Iterable[int]) -> Iterator[Problem]:
    """Yield the steps that a run makes and no file has."""
    gone = sorted(set(wanted) - set(recorded))
    if gone:
        shown = ", ".join(map(str, gone[:8])) + (" …" if len(gone) > 8 else "")
        yield Problem(
            f"{len(gone)} steps of this run are not recorded: {shown} (recorded: {len(recorded)})",
            is_missing=True,
        )


def unfit_step(step: Step, run: Candidate, plan: ReplayPlan) -> Iterator[Problem]:
    """Yield what of a recorded step does not fit a run, whatever it asks."""
    yield from _groups(step, run)
    yield from _lengths(step, run)
    yield from _ends(step, run)
    yield from _values(step, run, plan)


def unasked(step: Step, asked: Sequence[Prompt], others: Iterable[Step] = ()) -> Iterator[Problem]:
    """Yield prompts that a run asks at a step and the record has not, with what is there instead.

    Args:
        others: further recorded steps, in which a prompt may be.
    """
    found = assign(step, asked)
    lost = [prompt for prompt, place in zip(asked, found, strict=True) if place is None]
    if not lost:
        return
    left = [group.prompt for i, group in enumerate(step.groups) if i not in set(found)]
    yield Problem(
        f"{len(lost)} of {len(asked)} prompts are not recorded: {lost[0].shown}"
        f"{_why(lost[0], left, others)}",
        step.number,
        is_missing=True,
    )


def _why(prompt: Prompt, left: Sequence[Prompt], others: Iterable[Step]) -> str:
    twin = next((p for p in left if p.plain is not None and p.plain == prompt.plain), None)
    if twin is None and prompt.dataset_index is not None:
        twin = next((p for p in left if p.dataset_index == prompt.dataset_index), None)
    if twin is not None and twin.ids is not None and prompt.ids is not None:
        pairs = zip(twin.ids, prompt.ids, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        where = "one ends early" if place is None else f"from token {place} on"
        return (
            f"; it is recorded with other ids, {where} ({len(twin.ids)} tokens recorded, "
            f"{len(prompt.ids)} here): the template or the tokenizer differs"
        )
    for step in others:
        if any(group.prompt.asks_what(prompt) for group in step.groups):
            return f"; it is recorded at step {step.number}: the row order differs, use --order"
    return ""


def _groups(step: Step, run: Candidate) -> Iterator[Problem]:
    sizes = Counter(len(group.rows) for group in step.groups)
    if run.num_samples is not None and set(sizes) - {run.num_samples}:
        shown = ", ".join(f"{count} prompts with {size}" for size, count in sorted(sizes.items()))
        yield Problem(
            f"n has changed: {shown} responses are recorded, and this run asks for n = "
            f"{run.num_samples}",
            step.number,
        )
    for group in step.groups:
        indexes = [step.records[row].sample_index for row in group.rows]
        if None not in indexes and len(set(indexes)) < len(indexes):
            yield Problem(f"a response is recorded twice: {group.prompt.shown}", step.number)
            return


def _lengths(step: Step, run: Candidate) -> Iterator[Problem]:
    for what, limit, name in (
        ("prompts", run.max_prompt_length, "prompt_ids"),
        ("responses", run.max_response_length, "response_ids"),
    ):
        if limit is None:
            continue
        lengths = [len(getattr(record, name) or ()) for record in step.records]
        if (count := sum(length > limit for length in lengths)) > 0:
            yield Problem(
                f"{count} recorded {what} are longer than this run's limit of {limit} tokens "
                f"(up to {max(lengths)}), and would be cut",
                step.number,
            )


def _ends(step: Step, run: Candidate) -> Iterator[Problem]:
    """Compare how responses end: eos as the run's engine would give it, or cut at its limit."""
    cut = [r for r in step.records if r.finish_reason in STOPPED_BY_LENGTH]
    limit = run.max_response_length
    early = [r for r in cut if limit is not None and len(r.response_ids or ()) < limit]
    if early:
        yield Problem(
            f"{len(early)} responses were cut at {len(early[0].response_ids or ())} tokens, and "
            f"this run's limit is {limit}",
            step.number,
        )
    if not run.eos_ids:
        return
    ended = [
        r
        for r in step.records
        if r.response_ids
        and (
            r.finish_reason not in (*STOPPED_BY_LENGTH, None)
            or (r.finish_reason is None and limit is not None and len(r.response_ids) < limit)
        )
    ]
    bare = [r for r in ended if r.response_ids and r.response_ids[-1] not in run.eos_ids]
    if bare:
        assert bare[0].response_ids is not None
        yield Problem(
            f"{len(bare)} of {len(ended)} responses that ended by themselves do not end with this "
            f"run's eos {sorted(run.eos_ids)} but with {bare[0].response_ids[-1]}: eos was "
            "stripped, or is another",
            step.number,
        )


def _values(step: Step, run: Candidate, plan: ReplayPlan) -> Iterator[Problem]:
    if any(not record.response_ids for record in step.records):
        yield Problem("responses without token ids are recorded", step.number)
    if any(0 in (record.extras.get("response_mask") or ()) for record in step.records):
        yield Problem(
            "responses of several turns or with tool output are recorded, which cannot be replayed",
            step.number,
        )
    if plan.rewards is Source.RECORDED and any(record.score is None for record in step.records):
        yield Problem("--rewards recorded: rows without a score are recorded", step.number)
    lacks = any(record.log_probs is None for record in step.records)
    if run.asks_log_probs and plan.log_probs is Source.RECORDED and lacks:
        yield Problem(
            "this run uses the engine's log_probs and rows without them are recorded; pass "
            "--log-probs recomputed to do without",
            step.number,
        )
