"""Words for a likely cause: what kind of module it is, and the shape of the difference."""

from __future__ import annotations

from align.core.text import Text
from align.layers.pattern import Cause, Pattern, Place
from align.layers.walk import Walk
from dumps.store.tensor_records import Phase, TensorRecord

_CHECK = {
    Place.ATTENTION: Text(
        "q, k and v agree and what attention makes of them does not: compare the rotary "
        "embedding, the scale of the scores, the mask or the bounds of packed rows, and the "
        "softmax's dtype, in this order",
        "q、k、v 一致，而注意力的结果不同：请依次对照旋转位置编码、注意力分数的缩放系数、"
        "mask 或 packed 序列边界、softmax 的数据类型",
    ),
    Place.NORM: Text(
        "compare the norm's epsilon, then its weight and its formula (RMSNorm or LayerNorm, "
        "fused or not)",
        "请先对照该归一化层的 epsilon，再对照权重与公式（RMSNorm 或 LayerNorm，是否融合算子）",
    ),
    Place.ROUTER: Text(
        "compare the dtype in which the router works, then its scoring function and bias",
        "请先对照 router 计算所用的数据类型，再对照打分函数与偏置",
    ),
    Place.ROTARY: Text(
        "compare rope_theta, rope scaling and the dtype in which angles are computed",
        "请对照 rope_theta、rope scaling 以及角度计算所用的数据类型",
    ),
    Place.EMBEDDING: Text(
        "compare the embedding's scale and dtype", "请对照 embedding 的缩放与数据类型"
    ),
    Place.LINEAR: Text(
        "its inputs and recorded weights agree: compare its bias, the order of a fused weight's "
        "rows, LoRA adapters and the dtype of the product",
        "输入与已记录的权重一致：请对照偏置、融合权重的行顺序、LoRA 以及乘法的数据类型",
    ),
    Place.OTHER: Text(
        "compare what this module computes on both sides", "请对照两侧该模块的具体计算"
    ),
}


def address_text(record: TensorRecord) -> Text:
    """Name an activation or a gradient."""
    if record.phase == Phase.INPUT:
        return Text(f"the input of {record.name}", f"{record.name} 的输入")
    if record.phase == Phase.GRADIENT:
        return Text(f"the output of {record.name}", f"{record.name} 的输出")
    return Text(record.name, record.name)


def floors_text(*walks: Walk) -> Text:
    """Say where the limits come from that errors were held against."""
    rows = [compared for walked in walks for compared in walked.compared]
    sources = {row.limit.source.split(":")[0].split("; ")[-1] for row in rows if not row.departs}
    named = ", ".join(sorted(source for source in sources if "times" not in source))
    return Text(f" Limits: {named}.", f"限值来源：{named}。") if named else Text("", "")


def check_text(place: Place) -> Text:
    """Say what to compare in a module of this kind."""
    return _CHECK[place]


def shape_text(cause: Cause) -> Text:
    """Say what shape a difference has, as a sentence."""
    if cause.pattern is Pattern.SCALED:
        return Text(
            f"The candidate is the reference times {cause.factor:.4g}: a factor is missing or "
            "doubled.",
            f"被测等于参考乘以 {cause.factor:.4g}：多乘或漏乘了一个系数。",
        )
    if cause.pattern is Pattern.ONE_SHARD:
        ranks = round(1 / cause.factor)
        return Text(
            f"The candidate holds one of {ranks} ranks' part of the sum: the all-reduce is missing "
            "or sums over other ranks.",
            f"被测只含 {ranks} 个 rank 中一个 rank 的部分和：缺少 all-reduce，或规约的组不对。",
        )
    if cause.pattern is Pattern.WHOLE_FACTOR:
        return Text(
            f"The candidate is the reference times {cause.factor:.4g}: a sum over ranks or "
            "micro-batches is averaged on one side, or done twice.",
            f"被测等于参考乘以 {cause.factor:.4g}：对 rank 或 micro-batch 的求和在一侧做了平均，"
            "或重复了一次。",
        )
    return _SHAPES[cause.pattern]


_SHAPES = {
    Pattern.NOT_FINITE: Text(
        "One side has NaN or infinity here and the other has not.",
        "只有一侧在这里出现了 NaN 或无穷大。",
    ),
    Pattern.PERMUTED: Text(
        "Both sides hold the same values in another order: a permutation.",
        "两侧数值相同但顺序不同：发生了重排。",
    ),
    Pattern.BIAS: Text(
        "The difference is this layer's bias, the same at every token: one side leaves it out.",
        "差值就是该层的偏置，每个 token 处都相同：有一侧漏加了偏置。",
    ),
    Pattern.BFLOAT16: Text(
        "The difference is as large as one rounding to bfloat16 in a float32 tensor; a small "
        "wrong factor can be as large.",
        "在 float32 张量中，差值的大小相当于一次 bfloat16 舍入；较小的系数错误也可能有这样大。",
    ),
    Pattern.DTYPE: Text(
        "The two sides compute this module in different dtypes, and the modules before it in the "
        "same ones.",
        "两侧在该模块使用不同的数据类型，而在它之前的模块数据类型一致。",
    ),
    Pattern.OTHER: Text(
        "The difference has no simple shape: no common factor, no permutation, no constant.",
        "差值没有简单的形态：不是统一系数，不是重排，也不是常量。",
    ),
}
