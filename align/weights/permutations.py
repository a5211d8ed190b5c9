"""Recognise a known wrong order of rows: what reading one layout as another does.

Every candidate is an operation of the layout algebra applied to row numbers, so nothing is guessed:
an order is named only where it turns every row of the reference into the candidate's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from align.core.text import Text
from align.layout.ops import GroupHeads, Join, Op
from align.weights.measure import as_bits

_RANKS = (2, 4, 8)
_BLOCK_BYTES = 1 << 25
_UNKNOWN = Text(
    "the same rows in an order that no known layout gives",
    "行内容相同，但顺序不对应任何已知布局",
)
_COLUMNS = Text("the same columns in another order", "列内容相同，但顺序不同")


@dataclass(frozen=True, slots=True)
class Order:
    """A wrong order and its name.

    Args:
        rows: row ``rows[i]`` of the reference, its parts one below the other, lies at ``i``.
    """

    name: Text
    rows: Tensor


def recognise(
    reference: Sequence[Tensor], candidate: Sequence[Tensor], op: Op, head_dim: int
) -> Text | None:
    """Name the order that leads from one bundle of parts to the other, None where there is none.

    Args:
        reference: parts of one dtype, such as q, k and v.
        candidate: the same parts of the other side, of equal shapes.
        op: how Megatron bundles them.
        head_dim: rows of one head.
    """
    if len({part.shape[1:] for part in reference}) != 1:
        return None
    ours, theirs = row_hashes(reference), row_hashes(candidate)
    if not torch.equal(ours.sort().values, theirs.sort().values):
        return _columns(reference, candidate)
    counts = [part.shape[0] for part in reference]
    for order in orders(counts, op, head_dim):
        if torch.equal(ours[order.rows], theirs) and _leads(order, reference, candidate):
            return order.name
    return _UNKNOWN


def _leads(order: Order, reference: Sequence[Tensor], candidate: Sequence[Tensor]) -> bool:
    """Confirm bit for bit what the rows' hashes say."""
    moved = torch.cat(list(reference))[order.rows]
    return torch.equal(as_bits(moved), as_bits(torch.cat(list(candidate))))


def _columns(reference: Sequence[Tensor], candidate: Sequence[Tensor]) -> Text | None:
    if len(reference) != 1 or reference[0].dim() != 2:
        return None
    ours, theirs = row_hashes([reference[0].T]), row_hashes([candidate[0].T])
    same = torch.equal(ours.sort().values, theirs.sort().values)
    return _COLUMNS if same else None


def orders(counts: Sequence[int], op: Op, head_dim: int) -> Iterator[Order]:
    """Yield the known wrong orders of a bundle with so many rows in each part."""
    parts = list(torch.split(torch.arange(sum(counts)), list(counts)))
    if isinstance(op, GroupHeads):
        yield from _of_heads(parts, op, head_dim)
    elif isinstance(op, Join):
        yield Order(Text("gate and up exchanged", "gate 与 up 互换"), torch.cat(parts[::-1]))
    if len(parts) > 1:
        yield from _of_ranks(parts)


def _of_heads(parts: list[Tensor], op: GroupHeads, head_dim: int) -> Iterator[Order]:
    query, key, value = parts
    (grouped,) = op.forward(parts)
    yield Order(
        Text(
            "q, k, v kept by query group and read as [all q][all k][all v]",
            "q、k、v 按 query group 交错存放，却被当作 [全部 q][全部 k][全部 v] 读取",
        ),
        grouped,
    )
    yield Order(
        Text(
            "q, k, v kept as [all q][all k][all v] and read by query group",
            "q、k、v 按 [全部 q][全部 k][全部 v] 存放，却被当作按 query group 交错读取",
        ),
        torch.cat(op.inverse([torch.cat(parts)])),
    )
    yield Order(Text("k and v exchanged", "k 与 v 互换"), torch.cat([query, value, key]))
    half = torch.arange(head_dim).reshape(2, -1).T.reshape(-1)
    name = Text(
        "the rotary pairs of each head ordered otherwise (halves against neighbours)",
        "每个头的旋转位置编码配对顺序不同（前后两半 / 相邻交错）",
    )
    for order in (half, half.argsort()):
        turned = [part.reshape(-1, head_dim)[:, order].reshape(-1) for part in (query, key)]
        yield Order(name, torch.cat([*turned, value]))


def _of_ranks(parts: list[Tensor]) -> Iterator[Order]:
    """Yield shards of whole bundles put one below the other, as if there were one rank."""
    for ranks in _RANKS:
        if any(part.numel() % ranks for part in parts):
            continue
        pieces = zip(*(part.chunk(ranks) for part in parts), strict=True)
        merged = torch.cat([torch.cat(piece) for piece in pieces])
        name = Text(
            f"{ranks} tensor-parallel shards joined without taking their parts apart",
            f"{ranks} 个张量并行分片直接首尾相接，没有先拆分其中的各部分",
        )
        yield Order(name, merged)
        yield Order(name, merged.argsort())


def row_hashes(parts: Sequence[Tensor]) -> Tensor:
    """Return one int64 a row: its bits times fixed odd numbers, added up modulo 2**64."""
    return torch.cat([_hashes(part) for part in parts])


def _hashes(part: Tensor) -> Tensor:
    matrix = as_bits(part).reshape(part.shape[0], -1)
    width = matrix.shape[1]
    # splitmix64's increment, 0x9E3779B97F4A7C15, as a signed number; odd, so no bit is lost
    weights = (torch.arange(width, dtype=torch.int64) + 1) * -7046029254386353131 | 1
    weights = (weights ^ (weights >> 29)) * -4658895280553007687 | 1
    step = max(1, _BLOCK_BYTES // (8 * max(1, width)))
    blocks = torch.split(matrix, step) if matrix.shape[0] else ()
    sums = [(block.to(torch.int64) * weights).sum(1) for block in blocks]
    return torch.cat(sums) if sums else torch.empty(0, dtype=torch.int64)
