"""Advantage rung: are the recorded advantages those of the recorded scores, prompt by prompt?

An invariant within one run: responses of the two runs need not be alike. For the estimators whose
advantages follow from rewards, groups and masks alone (`align.rollout.estimators`); of two runs
that configure different ones the configurations are to be compared first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from align.core.config_value import EffectiveConfig
from align.core.finding import Side
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.rollout.estimators import Reads
from align.rollout.estimators_finding import finding_of
from align.rollout.estimators_recomputed import Recomputed, recompute
from dumps.store.run_data import RunData


def compare(
    reference: RunData, candidate: RunData, effective: Callable[[RunData], EffectiveConfig]
) -> RungResult:
    """Recompute both runs' advantages from their own scores.

    Args:
        effective: resolves a run's configuration (`align.config.normalise.effective`).
    """
    known, reasons = [], {}
    for side, run in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate)):
        found = recompute(side, run, effective(run))
        if isinstance(found, Text):
            reasons[side.value] = found
        else:
            known.append(found)
    if reasons:
        return _missing(list(reasons), next(iter(reasons.values())))
    if known[0].declared.estimator is not known[1].declared.estimator:
        return _missing([Side.CANDIDATE.value], _different(known))
    return _judge(known)


def _judge(both: Sequence[Recomputed]) -> RungResult:
    wrong = [run for run in both if run.differing]
    if len(wrong) == 1:
        finding = finding_of(wrong[0])
        title = finding.title
        return RungResult(
            Rung.ADVANTAGE,
            RungStatus.DIVERGED,
            Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。"),
            (finding,),
        )
    grouped = Reads.GROUPS in both[0].declared.estimator.reads
    if wrong:
        summary = _BOTH_OF_GROUPS if grouped else _BOTH_OF_REWARDS
        return RungResult(Rung.ADVANTAGE, RungStatus.UNDECIDED, summary)
    counts = [len(run.steps) for run in both]
    own = _OF_GROUPS if grouped else _OF_REWARDS
    return RungResult(
        Rung.ADVANTAGE,
        RungStatus.ALIGNED,
        Text(
            f"Both runs' advantages are those of their own {own.en} "
            f"({counts[0]} and {counts[1]} steps).",
            f"两次运行的 advantage 都与各自{own.zh}的计算结果一致"
            f"（{counts[0]} 步与 {counts[1]} 步）。",
        ),
    )


def _missing(sides: Sequence[str], reason: Text) -> RungResult:
    side = sides[0] if len(sides) == 1 else "both"
    return RungResult(
        name=Rung.ADVANTAGE,
        status=RungStatus.MISSING,
        summary=reason,
        missing=(missing_artifact(Rung.ADVANTAGE, side),),
    )


def _different(both: Sequence[Recomputed]) -> Text:
    reference, candidate = (run.declared.name for run in both)
    return Text(
        f"Not compared: the reference is configured with {reference}, the candidate with "
        f"{candidate}.",
        f"未比较：参考配置为 {reference}，被测配置为 {candidate}。",
    )


_OF_GROUPS = Text("scores, grouped by prompt", "得分按 prompt 分组")
_OF_REWARDS = Text("rewards", "奖励")
_BOTH_OF_GROUPS = Text(
    "Neither run's advantages are those of its scores grouped by prompt.",
    "两次运行的 advantage 都与各自得分按 prompt 分组的计算结果不符。",
)
_BOTH_OF_REWARDS = Text(
    "Neither run's advantages are those of its rewards.",
    "两次运行的 advantage 都与各自奖励的计算结果不符。",
)
