"""What each relation between two tensors means for a run, in both languages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from align.core.text import Text
from align.weights.diff import WeightDiff
from align.weights.measure import Relation


def _all_alike(diff: WeightDiff) -> str:
    return ""


def _bundle(diff: WeightDiff) -> str:
    """Tell q, k, v from gate, up and from experts, whose orders have different causes."""
    if any(mark in diff.name for mark in ("q_proj", "k_proj", "v_proj")):
        return "qkv"
    return "gate_up" if any(mark in diff.name for mark in ("gate_proj", "up_proj")) else "rows"


def _factor(diff: WeightDiff) -> str:
    """Spell the factor so that it can stand in an id."""
    gain = 0.0 if diff.distance is None else diff.distance.gain
    return f"by_{gain:.4g}".replace(".", "_").replace("-", "minus_").replace("+", "")


@dataclass(frozen=True, slots=True)
class Difference:
    """The finding of one relation.

    Args:
        group: one finding is made for each value of this.
    """

    relation: Relation
    id: str
    title: Text
    why: Text
    fix: Text
    group: Callable[[WeightDiff], str] = _all_alike


DIFFERENCES = (
    Difference(
        Relation.PERMUTED,
        "weights.permuted",
        Text("weights hold the same rows in another order", "权重内容相同但顺序不同"),
        Text(
            "The conversion took the tensor for another layout. Shapes fit, so nothing raises, and "
            "the model answers nonsense or quietly worse.",
            "转换时把张量当成了另一种布局。形状相符，不会报错，但模型输出会混乱或悄悄变差。",
        ),
        Text(
            "Convert again with `align weights convert`, which is checked against Megatron-core.",
            "用 `align weights convert` 重新转换，其布局已对照 Megatron-core 验证。",
        ),
        _bundle,
    ),
    Difference(
        Relation.OTHER_TENSOR,
        "weights.other_tensor",
        Text("tensors hold the numbers of others", "张量中存的是别的张量的数值"),
        Text(
            "The numbers are those of another name of the reference: layers counted from their own "
            "pipeline stage, or experts in another order, are the usual cause.",
            "数值等于参考侧另一个名称的张量：常见原因是层号按流水线阶段重新计数，或专家顺序不同。",
        ),
        Text(
            "Check the layer offset of each stage and the order of experts in the conversion.",
            "检查转换中每个阶段的层偏移和专家顺序。",
        ),
    ),
    Difference(
        Relation.TRANSPOSED,
        "weights.transposed",
        Text("weights are transposed", "权重被转置"),
        Text(
            "Rows and columns are exchanged, as between [out, in] and the grouped experts' "
            "[in, out].",
            "行列互换，例如 [out, in] 与分组专家的 [in, out] 之间。",
        ),
        Text("Transpose the tensors when converting.", "转换时转置这些张量。"),
    ),
    Difference(
        Relation.SCALED,
        "weights.scaled",
        Text("weights differ by a constant factor", "权重相差一个常数倍"),
        Text(
            "All numbers are multiplied by one factor: a norm folded into the next layer, an "
            "averaging over ranks, or a merge of LoRA with another scale.",
            "所有数值乘了同一因子：可能是 norm 被并入下一层、多 rank 求平均，"
            "或 LoRA 合并的系数不同。",
        ),
        Text(
            "Look for a sum or mean over ranks in the conversion.",
            "检查转换中是否对各 rank 求和或求平均。",
        ),
        _factor,
    ),
    Difference(
        Relation.SHAPE,
        "weights.shape",
        Text("weights have different shapes", "权重形状不同"),
        Text(
            "They cannot belong to the same model.",
            "它们不可能属于同一个模型。",
        ),
        Text("Check which model each side loads.", "检查两侧各自加载的是哪个模型。"),
    ),
    Difference(
        Relation.NONFINITE,
        "weights.nonfinite",
        Text("weights hold NaN or infinity", "权重含有 NaN 或无穷大"),
        Text(
            "One such number makes every activation after it NaN.",
            "一个这样的数值会让其后的所有激活变成 NaN。",
        ),
        Text(
            "Take the last checkpoint without them; find the step at which the loss became NaN.",
            "使用之前没有 NaN 的检查点；查找 loss 变为 NaN 的步。",
        ),
    ),
    Difference(
        Relation.DIFFERENT,
        "weights.different",
        Text("weights differ", "权重不同"),
        Text(
            "The numbers are neither equal nor a known rearrangement, rounding or multiple of each "
            "other: other training, or another model.",
            "数值既不相等，也不是已知的重排、舍入或倍数关系：训练过程不同，或模型不同。",
        ),
        Text(
            "Start both runs from one checkpoint; compare each side with the released weights to "
            "see which one changed.",
            "让两侧从同一检查点开始；分别与发布的权重比较，确定哪一侧变了。",
        ),
    ),
    Difference(
        Relation.ROUNDED,
        "weights.rounded",
        Text(
            "weights are equal up to the rounding of a coarser dtype",
            "权重在较粗数据类型的舍入范围内相等",
        ),
        Text(
            "One side passed through bfloat16 or float16. Its first log_probs differ by rounding, "
            "not more; a master copy in float32 that starts from the rounded numbers differs too.",
            "其中一侧经过了 bfloat16 或 float16。起始 log_probs 只有舍入级差异；"
            "由舍入值建立的 float32 主权重也会不同。",
        ),
        Text(
            "Load both sides from the same file and dtype.",
            "让两侧从同一文件、同一数据类型加载。",
        ),
    ),
)
