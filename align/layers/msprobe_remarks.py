"""Findings about two msprobe dumps beside their first departure: dtypes, layout, unpaired names."""

from __future__ import annotations

from collections.abc import Sequence

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.layers import msprobe_text as text
from align.layers.msprobe_compare import Method
from align.layers.msprobe_pair import PairedDumps
from align.layers.msprobe_walk import DumpWalk
from dumps.readers.msprobe import DumpedEntry, MsprobeDump

_SHOWN = 5
_SIGNATURE = ("training/rollout_probs_diff*", "rollout_corr/*")

Sides = tuple[MsprobeDump, MsprobeDump]


def make_finding(
    id: str,
    rung: Rung,
    title: Text,
    values: tuple[str | int | float | None, str | int | float | None],
    evidence: tuple[Evidence, ...],
    why: Text,
    fix: Text,
    severity: Severity = Severity.ERROR,
) -> Finding:
    """Make a finding; an error can be a cause."""
    return Finding(
        id=id,
        rung=rung,
        severity=severity,
        title=title,
        reference=values[0],
        candidate=values[1],
        evidence=evidence,
        why=why,
        fix=fix,
        mechanism=Mechanism(rung, Strength.SEMANTIC, _SIGNATURE)
        if severity is Severity.ERROR
        else None,
    )


def dtype_finding(rung: Rung, walk: DumpWalk, sides: Sides) -> Finding | None:
    """Return the finding of the first tensor held in another dtype."""
    tensor = walk.dtype
    if tensor is None:
        return None
    place = text.where(tensor.pair, tensor.reference.place)
    own, other = tensor.reference.dtype, tensor.candidate.dtype
    count = sum(t.reference.dtype != t.candidate.dtype for t in walk.tensors)
    return make_finding(
        f"{rung.value}.dtype",
        rung,
        Text(
            f"{place.en} is {own} in the reference and {other} in the candidate",
            f"{place.zh} 在参考中为 {own}，在被测中为 {other}",
        ),
        (own, other),
        text.neighbourhood(walk, tensor),
        Text(
            f"{count} of {len(walk.tensors)} tensors are held in another dtype; this is the first. "
            f"Their errors, up to {walk.worst:.2g}, come with it.",
            f"{len(walk.tensors)} 个张量中有 {count} 个的数据类型不同，这是第一个。"
            f"由此产生的误差最大为 {walk.worst:.2g}。",
        ),
        Text(
            f"Let both sides compute {tensor.pair.name} in the same dtype.",
            f"让两侧以相同的数据类型计算 {tensor.pair.name}。",
        ),
    )


def first_bits_finding(rung: Rung, walk: DumpWalk) -> Finding | None:
    """Say where whole tensors stop being equal bit for bit, if they are so at first."""
    whole = [t for t in walk.tensors if t.method is Method.TENSOR]
    at = next((i for i, t in enumerate(whole) if t.exact and not t.exact.is_equal), None)
    if not at or walk.departure is not None or walk.dtype is not None:
        return None
    tensor = whole[at]
    place = text.where(tensor.pair, tensor.reference.place)
    return make_finding(
        f"{rung.value}.first_other_bits",
        rung,
        Text(
            f"the first {at} tensors are equal bit for bit, {place.en} is not",
            f"前 {at} 个张量逐位相同，从 {place.zh} 开始不同",
        ),
        ("", ""),
        text.neighbourhood(walk, tensor),
        Text(
            f"The error ({tensor.relative:.2g}) is as small as rounding. On one device and one "
            "software version it still shows where something was changed, such as a kernel.",
            f"误差（{tensor.relative:.2g}）与舍入相当。若设备与软件版本相同，"
            "这里仍说明有改动，例如换了算子实现。",
        ),
        Text(
            "Nothing, unless both sides should run the same kernels.",
            "除非两侧应使用相同算子，否则无需处理。",
        ),
        Severity.INFO,
    )


def layout_finding(rung: Rung, walk: DumpWalk) -> Finding | None:
    """Say which tensors were compared with their axes in another order."""
    turned = [t for t in walk.tensors if t.axes is not None]
    if not turned:
        return None
    first = turned[0]
    place = text.where(first.pair, first.reference.place)
    return make_finding(
        f"{rung.value}.layout",
        rung,
        Text(
            f"{len(turned)} tensors have their axes in another order, the first is {place.en}",
            f"{len(turned)} 个张量的轴顺序不同，第一个是 {place.zh}",
        ),
        (str(list(first.reference.shape)), str(list(first.candidate.shape))),
        (),
        Text(
            "They are compared after putting the axes back; an order of axes is no error.",
            "已将轴顺序还原后比较；轴顺序不同不是误差。",
        ),
        Text("Nothing.", "无需处理。"),
        Severity.INFO,
    )


def unpaired_finding(rung: Rung, paired: PairedDumps, sides: Sides) -> Finding | None:
    """List the entries that one side alone has."""
    alone = paired.reference_only, paired.candidate_only
    if not any(alone):
        return None
    counts = len(alone[0]), len(alone[1])
    return make_finding(
        f"{rung.value}.unpaired",
        rung,
        Text(
            f"{counts[0]} entries are in the reference alone, {counts[1]} in the candidate alone",
            f"仅参考侧有 {counts[0]} 个条目，仅被测侧有 {counts[1]} 个条目",
        ),
        counts,
        tuple(
            Evidence(dump.source, side, text=_listed(entries))
            for dump, side, entries in zip(
                sides, (Side.REFERENCE, Side.CANDIDATE), alone, strict=True
            )
            if entries
        ),
        Text(
            f"They are not compared; {len(paired.pairs)} others are.",
            f"它们没有参与比较；其余 {len(paired.pairs)} 个已比较。",
        ),
        Text(
            "Dump both sides at the same level, with the same list, scope and model.",
            "两侧使用相同的 level、list、scope 与模型重新采集。",
        ),
        Severity.WARNING,
    )


def _listed(entries: Sequence[DumpedEntry]) -> str:
    names = ", ".join(entry.text for entry in entries[:_SHOWN])
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return f"{names[:180]}{more}"
