"""Findings about two msprobe dumps: what they disagree about first."""

from __future__ import annotations

from align.core.finding import Evidence, Finding, Severity, Side
from align.core.rung import Rung
from align.core.text import Text
from align.layers import msprobe_text as text
from align.layers.msprobe_compare import ComparedTensor
from align.layers.msprobe_remarks import Sides, make_finding
from align.layers.msprobe_walk import Departure, DumpWalk, Kind, differing_parameters


def departure_finding(rung: Rung, walk: DumpWalk, sides: Sides) -> Finding | None:
    """Return the finding of the first departure of a direction; None where there is none."""
    departure = walk.departure
    if departure is None:
        return None
    if departure.kind is Kind.ARGUMENT:
        return _argument(rung, departure, sides)
    if departure.kind is Kind.INPUTS:
        return _inputs(rung, departure, walk, sides)
    if departure.kind is Kind.WEIGHTS:
        return _weights(rung, departure, walk, sides)
    if departure.kind is Kind.SHAPE:
        return _shape(rung, departure, sides)
    if departure.kind is Kind.BITS:
        return _bits(rung, departure, walk, sides)
    return _error(rung, departure, walk, sides)


def _argument(rung: Rung, departure: Departure, sides: Sides) -> Finding:
    of, (own, other) = text.module(departure.pair), departure.values
    name = ".".join(departure.argument[1:])
    return make_finding(
        f"{rung.value}.other_argument",
        rung,
        Text(
            f"{of.en} is called with {own} in the reference and {other} in the candidate "
            f"(argument {name})",
            f"{of.zh}的参数 {name} 在参考中为 {own}，在被测中为 {other}",
        ),
        (own, other),
        _evidence(sides, departure),
        Text(
            f"It is the first thing that differs: all tensors before it agree within "
            f"{departure.before:.2g}.",
            f"这是最先出现的不同：此前所有张量一致（误差不超过 {departure.before:.2g}）。",
        ),
        Text(f"Make this argument of {of.en} equal.", f"使 {of.zh}的该参数一致。"),
    )


def _inputs(rung: Rung, departure: Departure, walk: DumpWalk, sides: Sides) -> Finding:
    tensor = departure.tensor
    assert tensor is not None
    place = text.where(departure.pair, tensor.reference.place)
    looked_up = not tensor.is_integer
    shown = Text(
        "Equal ids look equal weights up bit for bit, and statistics of whole numbers show little.",
        "相同的 id 与相同的权重查表结果逐位相同，而整数的统计量几乎不含信息。",
    )
    return make_finding(
        f"{rung.value}.other_inputs",
        rung,
        Text(
            f"the two models are called with other inputs: {place.en} differs",
            f"两侧模型的输入不同：{place.zh} 不同",
        ),
        ("", ""),
        (*_evidence(sides, departure), *text.neighbourhood(walk, tensor)),
        Text(
            (f"{shown.en} " if looked_up else "")
            + "With other inputs every activation differs, so no layer is to blame.",
            (shown.zh if looked_up else "") + "输入不同则所有激活都不同，因此不能归咎于任何一层。",
        ),
        Text(
            "Feed both sides the same input_ids, positions and masks, and dump again.",
            "让两侧使用相同的 input_ids、position_ids 与 mask，然后重新采集。",
        ),
    )


def _weights(rung: Rung, departure: Departure, walk: DumpWalk, sides: Sides) -> Finding:
    tensor = departure.tensor
    assert tensor is not None
    place = text.where(departure.pair, tensor.reference.place)
    count, total = differing_parameters(walk.tensors)
    unequal = tensor.exact.unequal if tensor.exact else 0
    numbers = f" in {unequal} of {tensor.exact.count} numbers" if tensor.exact else ""
    zh_numbers = f"（{tensor.exact.count} 个数中有 {unequal} 个不同）" if tensor.exact else ""
    return make_finding(
        f"{rung.value}.other_weights",
        rung,
        Text(
            f"{count} of {total} parameters differ; the first one used is {place.en}{numbers}",
            f"{total} 个参数中有 {count} 个不同；最先使用的是 {place.zh}{zh_numbers}",
        ),
        (tensor.reference.norm, tensor.candidate.norm),
        (*_evidence(sides, departure), *text.neighbourhood(walk, tensor)),
        Text(
            f"Everything computed before it agrees. The weight differs {text.size(tensor).en}; "
            "what is computed with it cannot agree.",
            f"在它之前的计算全部一致。该权重的差异：{text.size(tensor).zh}，用它算出的结果必然不同。",
        ),
        Text(
            "Start both sides from the same checkpoint; `align weights diff` compares two.",
            "两侧使用相同的 checkpoint；可用 `align weights diff` 比较。",
        ),
    )


def _shape(rung: Rung, departure: Departure, sides: Sides) -> Finding:
    tensor = departure.tensor
    assert tensor is not None
    place = text.where(departure.pair, tensor.reference.place)
    own, other = list(tensor.reference.shape), list(tensor.candidate.shape)
    return make_finding(
        f"{rung.value}.other_shape",
        rung,
        Text(
            f"{place.en} has the shape {own} in the reference and {other} in the candidate",
            f"{place.zh} 的形状在参考中为 {own}，在被测中为 {other}",
        ),
        (str(own), str(other)),
        _evidence(sides, departure),
        Text(
            "No order of the axes makes them equal: another batch, packing, or a shard of a "
            "tensor. msprobe dumps hold no rule to merge shards.",
            "任何轴顺序都无法使二者相同：批次、packing 不同，或只是张量的分片。"
            "msprobe dump 中没有合并分片所需的信息。",
        ),
        Text(
            "Dump both sides with the same batch, without packing and tensor parallelism; or "
            "record with `align capture`, which merges shards.",
            "两侧使用相同批次，关闭 packing 与张量并行后重新采集；"
            "或用 `align capture` 采集，它可以合并分片。",
        ),
    )


def _bits(rung: Rung, departure: Departure, walk: DumpWalk, sides: Sides) -> Finding:
    tensor = departure.tensor
    assert tensor is not None
    place = text.where(departure.pair, tensor.reference.place)
    return make_finding(
        f"{rung.value}.first_other_bits",
        rung,
        Text(
            f"bits differ first at {place.en}, whose inputs are equal bit for bit",
            f"逐位比较最先在 {place.zh} 处不同，而其输入逐位相同",
        ),
        (tensor.reference.digest or "", tensor.candidate.digest or ""),
        (*_evidence(sides, departure), *text.neighbourhood(walk, tensor)),
        Text(
            "A checksum does not say by how much. On one device and one software version this is "
            "where the computation changed; between two devices rounding alone can do it.",
            "校验值无法说明差异大小。若设备与软件版本相同，计算就是从这里开始不同；"
            "若设备不同，仅舍入也会如此。",
        ),
        Text(
            "Dump this module again with task tensor, or with summary_mode statistics.",
            "对该模块用 task tensor 或 summary_mode statistics 重新采集。",
        ),
        Severity.WARNING,
    )


def _error(rung: Rung, departure: Departure, walk: DumpWalk, sides: Sides) -> Finding:
    tensor = departure.tensor
    assert tensor is not None
    place, limit = text.where(departure.pair, tensor.reference.place), departure.limit
    how, shape, what = text.size(tensor), text.cause_text(departure), text.check(departure)
    first = Text("activations differ", "激活") if rung is Rung.FORWARD else None
    first = first or Text("gradients differ", "梯度")
    return make_finding(
        f"{rung.value}.first_divergence",
        rung,
        Text(
            f"{first.en} first at {place.en}, {how.en}, where rounding explains {limit.value:.2g}",
            f"{first.zh}最早在 {place.zh} 处不同，{how.zh}，而舍入只能解释 {limit.value:.2g}",
        ),
        (tensor.reference.norm, tensor.candidate.norm),
        (
            *_evidence(sides, departure),
            *text.neighbourhood(walk, tensor),
            Evidence("floor", Side.BOTH, text=f"{limit.value:.3g}: {limit.source}"[:200]),
        ),
        Text(
            f"Everything computed before it agrees within {departure.before:.2g}. {shape.en}",
            f"在它之前的计算一致（误差不超过 {departure.before:.2g}）。{shape.zh}",
        ),
        Text(f"In {departure.pair.name}: {what.en}.", f"在 {departure.pair.name} 处：{what.zh}。"),
    )


def _evidence(sides: Sides, departure: Departure) -> tuple[Evidence, ...]:
    tensor, pair = departure.tensor, departure.pair
    both = (Side.REFERENCE, pair.reference), (Side.CANDIDATE, pair.candidate)
    found = tuple(
        Evidence(dump.source, side, key=entry.text, text=_described(tensor, side))
        for dump, (side, entry) in zip(sides, both, strict=True)
    )
    if tensor is None:
        return found
    return (*found, Evidence("measured", Side.BOTH, text=text.measures(tensor)[:200]))


def _described(tensor: ComparedTensor | None, side: Side) -> str | None:
    if tensor is None:
        return None
    own = tensor.reference if side is Side.REFERENCE else tensor.candidate
    return f"{'.'.join(own.place)} {own.dtype} {list(own.shape)}"
