"""Choose: of the experiments that would tell something new, the one that costs least."""

from __future__ import annotations

from collections.abc import Iterator

from align.core.rung import Rung
from align.core.text import Text
from align.core.verdict import VerdictStatus
from align.next.catalogue import (
    capture_step,
    confirm_fix,
    greedy,
    lr_zero,
    one_token,
    repeat_reference,
    replay_step,
)
from align.next.commands import Side, commands_of, note_on
from align.next.experiment import Advice, Cost, Experiment, Plan
from align.next.situation import Situation

STEPS_PAST_SYMPTOM = 20  # as many as convergence is averaged over, at least
_ONE_TOKEN_SHARE = 0.1  # of a step: generation takes most of its time
_TRAINER = (Rung.TOKENS, Rung.FORWARD, Rung.ADVANTAGE, Rung.LOSS, Rung.BACKWARD, Rung.OPTIMIZER)


def choose(situation: Situation, reference: Side | None, candidate: Side) -> Advice:
    """Return the cheapest experiment, what also applies, and what needs no experiment."""
    plans = list(plans_for(situation, alone=reference is None))
    experiments = [
        Experiment(plan, cost_of(plan, situation), commands_of(plan, reference, candidate))
        for plan in plans
    ]
    experiments.sort(key=lambda experiment: experiment.cost.num_steps)
    sides = tuple(side for side in (reference, candidate) if side is not None)
    return Advice(
        situation=_sentence(situation),
        record=tuple(
            Text(
                f"{m.artifact.en} ({m.side}): {m.how_to_record.en}",
                f"{m.artifact.zh}（{_SIDES[m.side]}）：{m.how_to_record.zh}",
            )
            for m in situation.free
        ),
        chosen=experiments[0] if experiments else None,
        others=tuple(experiments[1:]),
        harmless=tuple(f.title for f in situation.harmless),
        blameless=tuple(f.title for f in situation.blameless),
        note=note_on(sides) if experiments else None,
    )


def plans_for(situation: Situation, *, alone: bool = False) -> Iterator[Plan]:
    """Yield every experiment whose outcome would change what is known."""
    if situation.status is VerdictStatus.ALIGNED:
        return
    if situation.cause is not None:
        symptom = situation.symptom.symptom if situation.symptom else None
        yield confirm_fix(
            (symptom.begun_by if symptom else 1) + STEPS_PAST_SYMPTOM,
            situation.cause.fix,
            situation.fix_settings,
        )
        return
    if situation.probs_differ and not situation.one_token:
        yield one_token() if situation.frozen else lr_zero()
    if alone:
        yield capture_step(alone=True)
        return
    if situation.in_first_step and _of_rollout(situation):
        yield greedy()
    if not situation.replayed:
        yield replay_step(records=not situation.has_rollouts)
    elif any(rung in situation.missing for rung in _TRAINER):
        yield capture_step(alone=False)
    if not situation.in_first_step:
        yield repeat_reference()


def cost_of(plan: Plan, situation: Situation) -> Cost:
    """Return what a plan takes, in steps of training and in seconds where a step's are known."""
    num_sides = (plan.reference is not None) + (plan.candidate is not None)
    steps = float(situation.last_step or 0) if plan.num_steps is None else float(plan.num_steps)
    if plan.id == "max_response_length_1":
        steps *= _ONE_TOKEN_SHARE
    total = max(steps, 1.0 if plan.num_steps is None else 0.0) * num_sides
    return Cost(total, None if situation.step_s is None else total * situation.step_s)


def _of_rollout(situation: Situation) -> bool:
    symptom = situation.symptom.symptom if situation.symptom else None
    return symptom is not None and symptom.rung in (Rung.ROLLOUT, Rung.REWARD)


def _sentence(situation: Situation) -> Text:
    if situation.status is None:
        return Text(
            "One run alone: without a reference only the run itself can be examined.",
            "只有一次运行：没有参考，只能检查该运行自身。",
        )
    if situation.status is VerdictStatus.ALIGNED:
        return Text("Aligned: no experiment is needed.", "一致：无需任何实验。")
    if situation.cause is not None:
        title = situation.cause.title
        return Text(f"The cause is known: {title.en}.", f"原因已知：{title.zh}。")
    if situation.symptom is None:
        return Text(
            "The cause is unknown, and no symptom in time is recorded.",
            "原因未知，也没有记录到随时间出现的现象。",
        )
    title = situation.symptom.title
    return Text(
        f"The cause is unknown. Earliest symptom: {title.en}.",
        f"原因未知。最早的现象：{title.zh}。",
    )


_SIDES = {"reference": "参考", "candidate": "被测", "both": "两侧"}
