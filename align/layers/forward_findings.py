"""What the forward rung says besides the first departure: other weights, other dtypes."""

from __future__ import annotations

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.layers.captured import CapturedStep
from align.layers.floor import UNIT_ROUNDOFF, usual_dtypes
from align.layers.start import POSITIONS, Pair, Start
from align.layers.walk import Compared, Walk
from dumps.store.tensor_records import Phase

_SIGNATURE = ("training/rollout_probs_diff*", "rollout_corr/*")
_FEW = 0.5  # training moves every parameter; a loader or converter misses some
_QUOTED = 5
_HALF = UNIT_ROUNDOFF["float16"]


def weights_finding(pair: Pair) -> Finding | None:
    """Name the parameters that differ where most are equal: not another training, a bad copy."""
    few = len(pair.weights) <= _FEW * pair.num_weights
    if pair.start is not Start.OTHER_WEIGHTS or not few or pair.reference is None:
        return None
    assert pair.candidate is not None
    error, name = pair.weights[0]
    count, total, step = len(pair.weights), pair.num_weights, pair.reference.step
    names = ", ".join(each for _, each in pair.weights[:_QUOTED])
    return Finding(
        id="forward.weights",
        rung=Rung.FORWARD,
        severity=Severity.ERROR,
        title=Text(
            f"{count} of {total} parameters differ at step {step}, most {name}, by {error:.2g}",
            f"第 {step} 步 {total} 个参数中有 {count} 个不同，相差最大的是 {name}（{error:.2g}）",
        ),
        reference=None,
        candidate=error,
        evidence=(
            Evidence(pair.reference.source, Side.REFERENCE, key=f"step {step} parameter {name}"),
            Evidence(pair.candidate.source, Side.CANDIDATE, text=names[:200]),
        ),
        why=Text(
            "The other parameters are equal bit by bit, so this is not another training: these "
            "were loaded, converted or sharded wrongly. No layer's computation is judged.",
            "其余参数逐位相同，因此不是训练不同，而是这些参数在加载、转换或切分时出错。"
            "不对任何一层的计算下结论。",
        ),
        fix=Text(
            f"Compare the two checkpoints with `align weights diff`, beginning with {name}.",
            f"请用 `align weights diff` 对照两侧的检查点，从 {name} 开始。",
        ),
        mechanism=Mechanism(Rung.FORWARD, Strength.SEMANTIC, _SIGNATURE),
    )


def positions_finding(pair: Pair, departure: Compared) -> Finding:
    """Name the position_ids that the model is called with, where activations follow them."""
    assert pair.reference is not None and pair.candidate is not None
    steps = (pair.reference, pair.candidate)
    own, other = (step.of(Phase.INPUT)[POSITIONS] for step in steps)
    spans = [f"{record.minimum:g} to {record.maximum:g}" for record in (own, other)]
    zh_spans = [f"{record.minimum:g} 到 {record.maximum:g}" for record in (own, other)]
    name, error = departure.reference.name, departure.difference.relative
    return Finding(
        id="forward.position_ids",
        rung=Rung.FORWARD,
        severity=Severity.ERROR,
        title=Text(
            f"the models are called with other position_ids for the same tokens: {spans[0]} in the "
            f"reference, {spans[1]} in the candidate",
            f"相同 token 传给模型的 position_ids 不同：参考为 {zh_spans[0]}，被测为 {zh_spans[1]}",
        ),
        reference=own.mean,
        candidate=other.mean,
        evidence=tuple(
            Evidence(
                step.source,
                side,
                key=f"step {step.step} input position_ids",
                text=f"mean {record.mean:.6g} min {record.minimum:.6g} max {record.maximum:.6g}",
            )
            for step, side, record in zip(
                steps, (Side.REFERENCE, Side.CANDIDATE), (own, other), strict=True
            )
        ),
        why=Text(
            f"Tokens and weights are the same, and activations differ first at {name}, by "
            f"{error:.2g}: attention sees other distances. A constant offset would change nothing.",
            f"token 与权重相同，激活最早在 {name} 处不同（{error:.2g}）：注意力看到的距离不同。"
            "若只是相差一个常数，则不会有影响。",
        ),
        fix=Text(
            "Look at what makes position_ids between the batch and the model: packing, padding, "
            "scaling, context parallelism.",
            "检查从 batch 到模型之间生成 position_ids 的代码：packing、padding、缩放、上下文并行。",
        ),
        mechanism=Mechanism(Rung.FORWARD, Strength.SEMANTIC, _SIGNATURE),
    )


def dtype_finding(reference: CapturedStep, candidate: CapturedStep, walked: Walk) -> Finding | None:
    """Say that one run computes in 16 bits and the other does not, errors being as large."""
    own, other = usual_dtypes(
        [each.reference for each in walked.compared], [each.candidate for each in walked.compared]
    )
    is_half = [UNIT_ROUNDOFF.get(name, 0.0) >= _HALF for name in (own, other)]
    if is_half[0] == is_half[1]:
        return None
    count, total = (
        sum((e.reference.dtype, e.candidate.dtype) == (own, other) for e in walked.compared),
        len(walked.compared),
    )
    return Finding(
        id="forward.dtype",
        rung=Rung.FORWARD,
        severity=Severity.WARNING,
        title=Text(
            f"{count} of {total} activations are {own} in the reference and {other} in the "
            "candidate",
            f"{total} 个激活中有 {count} 个在参考中是 {own}，在被测中是 {other}",
        ),
        reference=own,
        candidate=other,
        evidence=(
            Evidence(reference.source, Side.REFERENCE, key=f"step {reference.step}"),
            Evidence(candidate.source, Side.CANDIDATE, key=f"step {candidate.step}"),
        ),
        why=Text(
            f"Every error is as large as the coarser dtype's rounding, {walked.worst:.2g} at most: "
            "no single module differs.",
            f"所有误差都与较粗数据类型的舍入相当，最大 {walked.worst:.2g}：没有单个模块不同。",
        ),
        fix=Text(
            "Set the same compute dtype on both sides, or accept errors of this size.",
            "请在两侧设置相同的计算数据类型，或接受这种大小的误差。",
        ),
        mechanism=Mechanism(Rung.FORWARD, Strength.NUMERIC, _SIGNATURE),
    )
