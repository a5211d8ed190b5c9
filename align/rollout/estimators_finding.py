"""What is reported of a run whose advantages are not those that its configuration declares."""

from __future__ import annotations

import numpy as np

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.rollout.advantage_formulas import (
    DISCOUNT,
    ESTIMATOR,
    GROUPS,
    NORMALIZATION,
    PERMUTED,
    SCALED,
    SCORES_MOVED,
    Formula,
    formula_of,
)
from align.rollout.estimators import Reads
from align.rollout.estimators_declared import Declared
from align.rollout.estimators_recomputed import ZH, Recomputed, differing_places
from align.rollout.estimators_signals import signals_of

_QUOTED = 3


def finding_of(run: Recomputed) -> Finding:
    """Name the mistake of a run that has differing steps, and quote the first places it shows."""
    first = run.differing[0]
    rows = int(differing_places(first, run.declared).any(axis=1).sum())
    formula = formula_of(run.steps, run.declared)
    where = Text(
        f"{rows} of {len(first)} rows at step {first.step} "
        f"({len(run.differing)} of {len(run.steps)} steps)",
        f"第 {first.step} 步 {len(first)} 行中有 {rows} 行"
        f"（{len(run.steps)} 步中有 {len(run.differing)} 步）",
    )
    return Finding(
        id=f"advantage.{'recomputed_differs' if formula is None else formula.kind}",
        rung=Rung.ADVANTAGE,
        severity=Severity.ERROR,
        title=_title(run, where, formula),
        reference=rows if run.side is Side.REFERENCE else 0,
        candidate=rows if run.side is Side.CANDIDATE else 0,
        evidence=_evidence(run),
        why=_why(run.declared),
        fix=_fix(run.declared, formula),
        mechanism=Mechanism(Rung.ADVANTAGE, Strength.SEMANTIC),
    )


def _title(run: Recomputed, where: Text, formula: Formula | None) -> Text:
    side, zh = run.side.value, ZH[run.side]
    if formula is None and Reads.GROUPS not in run.declared.estimator.reads:
        return Text(
            f"the {side}'s advantages are not those of its rewards: {where.en}",
            f"{zh}的 advantage 与其奖励的计算结果不符：{where.zh}",
        )
    if formula is None:
        return Text(
            f"the {side}'s advantages are not those of its scores grouped by prompt: {where.en}",
            f"{zh}的 advantage 与其得分按 prompt 分组的计算结果不符：{where.zh}",
        )
    if formula.kind == GROUPS:
        return Text(
            f"the {side} {formula.what.en}, not the responses to one prompt: {where.en}",
            f"{zh}{formula.what.zh}，而不是同一 prompt 的回复：{where.zh}",
        )
    return Text(
        f"for its advantages the {side} {formula.what.en}: {where.en}",
        f"计算 advantage 时，{zh}{formula.what.zh}：{where.zh}",
    )


def _evidence(run: Recomputed) -> tuple[Evidence, ...]:
    """Quote recorded and recomputed advantage and score: of rows, or of tokens that differ."""
    first, declared, side = run.differing[0], run.declared, run.side
    signals = signals_of(first, declared.estimator)
    expected = signals.expected(declared.estimator, declared.settings)
    quoted: list[Evidence] = []
    for row, token in np.argwhere(signals.differing(expected))[:_QUOTED].tolist():
        by_token = declared.estimator.by_token
        key = f"advantages[{row}, {token}]" if by_token else f"advantages[{row}]"
        source, line = first.places[row]
        for name, value in (
            (first.source, signals.least[row, token]),
            (declared.formula, expected[row, token]),
        ):
            quoted.append(Evidence(name, side, key=key, values=(float(value),)))
        score = float(first.trained[row])
        quoted.append(Evidence(source, side, line=line, key="score", values=(score,)))
    return tuple(quoted)


def _why(declared: Declared) -> Text:
    if declared.name == "grpo":
        return Text(
            "GRPO's advantages follow from the scores of one prompt's responses alone, and the "
            "other run's do; other advantages reinforce other responses.",
            "GRPO 的 advantage 只取决于同一 prompt 各回复的得分，另一侧符合这一点；"
            "advantage 不同，被强化的回复也就不同。",
        )
    return Text(
        f"The advantages of {declared.name} follow from the rewards of the batch, its groups and "
        "lengths alone, and the other run's do; other advantages reinforce other responses.",
        f"{declared.name} 的 advantage 只取决于该 batch 的奖励、分组与长度，另一侧符合这一点；"
        "advantage 不同，被强化的回复也就不同。",
    )


def _fix(declared: Declared, formula: Formula | None) -> Text:
    if formula is None:
        return _FIX_FORMULA if declared.label == "GRPO" else _FIX_QUOTED
    if formula.kind == NORMALIZATION and Reads.WHITENING in declared.estimator.reads:
        return _FIX_WHITENING
    return _FIXES[formula.kind]


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
    DISCOUNT: Text("Pass algorithm.gamma to the estimator.", "把 algorithm.gamma 传给估计函数。"),
    ESTIMATOR: Text(
        "Choose the advantage function by algorithm.adv_estimator, and check what becomes of a "
        "name that is not known.",
        "按 algorithm.adv_estimator 选择 advantage 函数，并检查遇到未知名称时会怎样处理。",
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
_FIX_WHITENING = Text(
    "Whiten over the response mask of the whole batch, after the estimator and before the loss.",
    "在估计之后、损失之前，按整个 batch 的 response_mask 做白化。",
)
_FIX_QUOTED = Text(
    "Compare the quoted advantages with the formula quoted beside them, and which scores, groups "
    "and lengths enter.",
    "用所引公式对照引用的 advantage，并检查参与计算的得分、分组与长度。",
)
