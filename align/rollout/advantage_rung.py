"""Advantage rung: are the recorded advantages those of the recorded scores, prompt by prompt?

An invariant within one run: responses of the two runs need not be alike. Only for GRPO, whose
advantages follow from scores and groups alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from align.core.config_value import EffectiveConfig
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.rollout.advantage_formulas import (
    GROUPS,
    NORMALIZATION,
    PERMUTED,
    SCALED,
    SCORES_MOVED,
    Formula,
    formula_of,
)
from align.rollout.group_advantages import Scaling, differing_rows, group_advantages, prompt_groups
from align.rollout.trained_rows import TrainedStep, trained_steps
from dumps.store.run_data import RunData

_QUOTED = 3
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


@dataclass(frozen=True, slots=True)
class Recomputed:
    """One run's steps that record advantages.

    Args:
        scaling: what its configuration divides by.
        differing: the steps on which any recorded advantage is not the recomputed one.
    """

    side: Side
    scaling: Scaling
    steps: tuple[TrainedStep, ...]
    differing: tuple[TrainedStep, ...]


def compare(
    reference: RunData, candidate: RunData, effective: Callable[[RunData], EffectiveConfig]
) -> RungResult:
    """Recompute both runs' advantages from their own scores.

    Args:
        effective: resolves a run's configuration (`align.config.normalise.effective`).
    """
    runs = ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    both = [recompute(side, run, effective(run)) for side, run in runs]
    known = [run for run in both if run is not None]
    lacking = [side.value for (side, _), run in zip(runs, both, strict=True) if run is None]
    if lacking:
        return _missing(lacking)
    return _judge(known)


def recompute(side: Side, run: RunData, config: EffectiveConfig) -> Recomputed | None:
    """Recompute a run's advantages; None where it is not known to be GRPO, or records none."""
    estimator = config.values.get("advantage.estimator")
    by_std = config.values.get("advantage.normalize_by_std")
    if estimator is None or estimator.value != "grpo":
        return None
    if by_std is None or not isinstance(by_std.value, bool):
        return None
    scale = config.values.get("advantage.options.scale_rewards")
    if scale is not None and scale.value == "batch":
        return None
    epsilon = config.values.get("advantage.std_eps")
    scaling = Scaling(by_std.value)
    if epsilon is not None and isinstance(epsilon.value, int | float):
        scaling = Scaling(by_std.value, float(epsilon.value))
    steps = tuple(step for step in trained_steps(run) if step.least is not None)
    differing = tuple(
        step for step in steps if differing_rows(step, prompt_groups(step), scaling).any()
    )
    return Recomputed(side, scaling, steps, differing) if steps else None


def _judge(both: Sequence[Recomputed]) -> RungResult:
    wrong = [run for run in both if run.differing]
    if len(wrong) == 1:
        finding = _finding(wrong[0])
        title = finding.title
        return RungResult(
            Rung.ADVANTAGE,
            RungStatus.DIVERGED,
            Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。"),
            (finding,),
        )
    if wrong:
        return RungResult(Rung.ADVANTAGE, RungStatus.UNDECIDED, _BOTH)
    counts = [len(run.steps) for run in both]
    return RungResult(
        Rung.ADVANTAGE,
        RungStatus.ALIGNED,
        Text(
            "Both runs' advantages are those of their own scores, grouped by prompt "
            f"({counts[0]} and {counts[1]} steps).",
            "两次运行的 advantage 都与各自得分按 prompt 分组的计算结果一致"
            f"（{counts[0]} 步与 {counts[1]} 步）。",
        ),
    )


def _finding(run: Recomputed) -> Finding:
    first = run.differing[0]
    groups = prompt_groups(first)
    rows = np.flatnonzero(differing_rows(first, groups, run.scaling))
    expected = group_advantages(first.trained, groups, run.scaling)
    formula = formula_of(run.steps, run.scaling)
    where = Text(
        f"{len(rows)} of {len(first)} rows at step {first.step} "
        f"({len(run.differing)} of {len(run.steps)} steps)",
        f"第 {first.step} 步 {len(first)} 行中有 {len(rows)} 行"
        f"（{len(run.steps)} 步中有 {len(run.differing)} 步）",
    )
    return Finding(
        id=f"advantage.{'recomputed_differs' if formula is None else formula.kind}",
        rung=Rung.ADVANTAGE,
        severity=Severity.ERROR,
        title=_title(run.side, where, formula),
        reference=len(rows) if run.side is Side.REFERENCE else 0,
        candidate=len(rows) if run.side is Side.CANDIDATE else 0,
        evidence=tuple(
            item
            for row in rows[:_QUOTED]
            for item in _evidence(run, first, int(row), float(expected[row]))
        ),
        why=Text(
            "GRPO's advantages follow from the scores of one prompt's responses alone, and the "
            "other run's do; other advantages reinforce other responses.",
            "GRPO 的 advantage 只取决于同一 prompt 各回复的得分，另一侧符合这一点；"
            "advantage 不同，被强化的回复也就不同。",
        ),
        fix=_FIX_FORMULA if formula is None else _FIXES[formula.kind],
        mechanism=Mechanism(Rung.ADVANTAGE, Strength.SEMANTIC),
    )


def _title(side: Side, where: Text, formula: Formula | None) -> Text:
    if formula is None:
        return Text(
            f"the {side.value}'s advantages are not those of its scores grouped by prompt: "
            f"{where.en}",
            f"{_ZH[side]}的 advantage 与其得分按 prompt 分组的计算结果不符：{where.zh}",
        )
    if formula.kind == GROUPS:
        return Text(
            f"the {side.value} {formula.what.en}, not the responses to one prompt: {where.en}",
            f"{_ZH[side]}{formula.what.zh}，而不是同一 prompt 的回复：{where.zh}",
        )
    return Text(
        f"for its advantages the {side.value} {formula.what.en}: {where.en}",
        f"计算 advantage 时，{_ZH[side]}{formula.what.zh}：{where.zh}",
    )


def _evidence(
    run: Recomputed, step: TrainedStep, row: int, expected: float
) -> tuple[Evidence, Evidence, Evidence]:
    side, epsilon = run.side, run.scaling.epsilon
    source, line = step.places[row]
    return (
        Evidence(step.source, side, key=f"advantages[{row}]", values=(_recorded(step, row),)),
        Evidence(
            f"(score - mean of the prompt's scores) / (std + {epsilon:g})",
            side,
            key=f"advantages[{row}]",
            values=(expected,),
        ),
        Evidence(source, side, line=line, key="score", values=(float(step.trained[row]),)),
    )


def _recorded(step: TrainedStep, row: int) -> float:
    assert step.least is not None
    return float(step.least[row])


def _missing(sides: Sequence[str]) -> RungResult:
    side = sides[0] if len(sides) == 1 else "both"
    return RungResult(
        name=Rung.ADVANTAGE,
        status=RungStatus.MISSING,
        summary=Text(
            "Not compared: needs GRPO's scores, groups and advantages of both runs.",
            "未比较：需要两侧 GRPO 的得分、分组与 advantages。",
        ),
        missing=(missing_artifact(Rung.ADVANTAGE, side),),
    )


_BOTH = Text(
    "Neither run's advantages are those of its scores grouped by prompt.",
    "两次运行的 advantage 都与各自得分按 prompt 分组的计算结果不符。",
)
_FIX_SCORES = Text(
    "Rows and scores have come apart between the reward and the advantages: gather both by the "
    "same index, and check where rows are reordered, balanced over ranks or split.",
    "奖励与 advantage 之间行与得分错位：请用同一索引取二者，"
    "并检查行被重排、按 rank 均衡或切分之处。",
)
_FIXES = {
    GROUPS: Text(
        "Group by uid (or prompt) where advantages are computed, and repeat prompts interleaved, "
        "a a b b, not a b a b.",
        "计算 advantage 时按 uid（或 prompt）分组，并以 a a b b 而非 a b a b 的顺序重复 prompt。",
    ),
    NORMALIZATION: Text(
        "Normalise as the configuration says: verl norm_adv_by_std_in_grpo, TRL scale_rewards; "
        "std of the group with Bessel's correction, plus 1e-6.",
        "按配置归一化：verl norm_adv_by_std_in_grpo、TRL scale_rewards；"
        "组内标准差做贝塞尔校正，并加 1e-6。",
    ),
    SCORES_MOVED: _FIX_SCORES,
    PERMUTED: _FIX_SCORES,
    SCALED: Text(
        "Look for a factor between the advantage function and the loss, such as a weight or a "
        "number of ranks.",
        "检查 advantage 函数与损失之间是否多乘了系数，例如权重或 rank 数。",
    ),
}
_FIX_FORMULA = Text(
    "Compare the quoted rows with the formula: mean and std of the group, Bessel's correction, "
    "epsilon, and which scores enter.",
    "用公式对照引用的行：组内均值与标准差、贝塞尔校正、epsilon，以及参与计算的得分。",
)
