"""Say that a policy broke down, in which order its metrics left, and where to look first."""

from __future__ import annotations

from collections.abc import Iterator

from align.core.figure import Column, Table
from align.core.finding import Finding, Severity, Side
from align.core.rung import Rung
from align.core.text import Text
from align.curves.signature import Movement, Pattern, Signature


def signature_findings(signature: Signature | None, first_step: int) -> Iterator[Finding]:
    """Yield an error with the symptom of the metric that left first."""
    if signature is None:
        return
    first = signature.movements[0]
    metric, onset = first.metric, first.onset
    yield Finding(
        id="curves.collapse_signature",
        rung=Rung.CURVES,
        severity=Severity.ERROR,
        title=_title(signature),
        reference=_values(signature, Side.REFERENCE),
        candidate=_values(signature, Side.CANDIDATE),
        evidence=tuple(e for m in signature.movements for e in m.metric.evidence(m.begin)),
        why=_why(signature),
        fix=_FIXES[_first_of(signature)],
        symptom=metric.symptom(
            onset.step, first_step, noise_sized=False, uncertainty=onset.uncertainty
        ),
    )


def signature_table(signature: Signature | None) -> Table | None:
    """Show what left, in order, from which level to which."""
    if signature is None:
        return None
    return Table(
        id="curves.collapse_signature",
        title=Text("Signature of the collapse, in order", "塌缩过程（按先后）"),
        columns=(
            Column("metric", Text("metric", "指标")),
            Column("onset", Text("onset, first step", "起点（最早）"), numeric=True),
            Column("onset_last", Text("onset, last step", "起点（最晚）"), numeric=True),
            Column("before", Text("before", "之前"), numeric=True),
            Column("after", Text("after", "之后"), numeric=True),
            Column("kind", Text("what it does", "变化")),
        ),
        rows=tuple(
            (
                m.metric.name,
                m.begin,
                m.end,
                m.level.before,
                m.level.after,
                _COLLAPSES if m.metric.name in signature.collapsed else _moves(m),
            )
            for m in signature.movements
        ),
    )


def _title(signature: Signature) -> Text:
    side, what = _SIDE[signature.side], _WHAT[signature.pattern]
    order = ", then ".join(f"{m.metric.name} ({_span(m)})" for m in signature.movements)
    order_zh = " → ".join(f"{m.metric.name}（{_span(m)}）" for m in signature.movements)
    unsure = Text("", "") if signature.first_is_sure else _TOGETHER
    return Text(
        f"The policy of the {side.en} collapses: {what.en}. In order of onset: {order}{unsure.en}",
        f"{side.zh}的策略发生塌缩：{what.zh}。按起点先后：{order_zh}{unsure.zh}",
    )


def _why(signature: Signature) -> Text:
    changes = "; ".join(_change(m) for m in signature.movements)
    return Text(
        f"These left the level they had, on one side alone: {changes}. A mistake in one metric "
        "moves that metric; a policy that breaks down moves them together, and the first is "
        "nearest to the cause.",
        f"仅一侧的这些指标离开了原有水平：{changes}。"
        "单个指标记录有误只会影响该指标；策略塌缩时它们一起变化，最先变化的最接近原因。",
    )


def _first_of(signature: Signature) -> str:
    """Return what tells where to look: the family that left first, if one surely did."""
    if not signature.first_is_sure:
        return "together"
    first = signature.movements[0]
    if first.metric.name == "actor/entropy":
        return "entropy_up" if first.rises else "entropy_down"
    return "reward" if first.metric.name.startswith("critic/") else "length"


def _values(signature: Signature, side: Side) -> str:
    """Return the last values of all of them on one side."""
    return ", ".join(
        f"{m.metric.name} {float(getattr(m.metric, side.value)[-1]):.4g}"
        for m in signature.movements
    )


def _change(movement: Movement) -> str:
    level = movement.level
    return f"{movement.metric.name} {level.before:.4g} → {level.after:.4g}"


def _span(movement: Movement) -> str:
    if movement.begin == movement.end:
        return f"step {movement.begin}"
    return f"steps {movement.begin}–{movement.end}"


def _moves(movement: Movement) -> Text:
    return Text("rises", "上升") if movement.rises else Text("falls", "下降")


_SIDE = {
    Side.REFERENCE: Text("reference", "参考"),
    Side.CANDIDATE: Text("candidate", "被测"),
}
_COLLAPSES = Text("collapses", "塌缩")
_TOGETHER = Text(
    " (which of them was first is not known: their onsets overlap)", "（起点重叠，无法判断谁最先）"
)
_WHAT = {
    Pattern.SURE: Text(
        "its entropy falls with it, so it repeats few answers",
        "熵随之下降，策略只重复少数回答",
    ),
    Pattern.LOST: Text(
        "its entropy rises with it, so its answers fall apart",
        "熵随之上升，回答变得杂乱",
    ),
    Pattern.SHORT: Text(
        "response length and reward leave together", "回复长度与奖励一起离开原有水平"
    ),
}
_FIXES = {
    "entropy_down": Text(
        "Compare what keeps entropy up: KL and entropy coefficients, clip range (upper above all), "
        "learning rate, advantage normalisation. Then recompute the loss of the steps before the "
        "onset (align referee).",
        "比较维持熵的设置：KL 与熵系数、裁剪范围（尤其上界）、学习率、优势归一化；"
        "再重算起点之前几步的损失（align referee）。",
    ),
    "entropy_up": Text(
        "Look for an update that pushes away instead of towards: sign of the loss and of the KL, "
        "gradient norm and NaN just before the onset, trainer against rollout log_probs. Then "
        "recompute the loss of these steps (align referee).",
        "检查更新方向是否相反：损失与 KL 的符号、起点之前的梯度范数与 NaN、"
        "训练侧与 rollout 侧的 log_prob；再重算这些步的损失（align referee）。",
    ),
    "length": Text(
        "Read the responses of the steps around the first onset: nothing, repetition, or cut off. "
        "Compare eos and pad ids, stop words, response length limits, and the engine's weights "
        "after the weight sync.",
        "查看最早起点前后的回复：空、重复或被截断。比较 eos 与 pad id、停止词、长度上限，"
        "以及权重同步后推理引擎中的权重。",
    ),
    "reward": Text(
        "Score the responses of the steps around the first onset again: if the rewards hold, the "
        "policy learned from wrong advantages (align referee); if not, the rule changed.",
        "对最早起点前后的回复重新打分：若奖励一致，则策略是从错误的 advantage 学到的"
        "（align referee）；否则是规则发生了变化。",
    ),
    "together": Text(
        "Compare the steps just before the earliest onset one by one: responses, rewards, "
        "advantages, loss, gradient norm (align report with these steps recorded). Resume both "
        "runs from the last checkpoint before it with the steps recorded.",
        "逐环节比较最早起点之前的几步：回复、奖励、advantage、损失、梯度范数"
        "（记录这些步后运行 align report）；从其之前的检查点续训两侧并记录这些步。",
    ),
}
