"""Every operation of the layout algebra undoes itself bit for bit, and gives the known layouts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from align.layout.dialect import DIALECTS, Dialect
from align.layout.entries import Place, entries, whole
from align.layout.family import family_of
from align.layout.ops import (
    Chain,
    Fold,
    GroupHeads,
    Join,
    Op,
    Pad,
    Rename,
    Shard,
    Stack,
    Tensors,
    Tie,
    Transpose,
)
from align.layout.sizes import sizes_of
from tests.unit.weight_models import CONFIGS

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
few = st.integers(1, 4)


def random(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Return random bits, NaN and infinities among them."""
    width = torch.empty((), dtype=dtype).element_size()
    size = [*shape, width]
    bits = torch.randint(0, 256, size, generator=torch.Generator().manual_seed(seed))
    return bits.to(torch.uint8).view(dtype).reshape(tuple(shape))


def same_bits(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in pairs
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Op, Tensors]:
    """Draw an operation with tensors it fits."""
    dtype, seed = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**20))
    a, b, groups, ratio, count = (draw(few) for _ in range(5))

    def matrices(*rows: int) -> Tensors:
        return [random((r, b), dtype, seed + i) for i, r in enumerate(rows)]

    def vectors(*rows: int) -> Tensors:
        return [random((r,), dtype, seed + i) for i, r in enumerate(rows)]

    make = draw(st.sampled_from((matrices, vectors)))
    head = 2 * a
    experts = Stack(count)
    options: list[tuple[Op, Tensors]] = [
        (Rename(), make(a, b)),
        (Join((1, 1)), make(a, a, count, count)),
        (Join((ratio, 1, 1)), make(ratio * a, a, a)),
        (
            GroupHeads(groups * ratio, groups),
            make(groups * ratio * head, groups * head, groups * head),
        ),
        (experts, matrices(*[a] * count)),
        (Transpose(), matrices(a, count)),
        (Chain((experts, Transpose(), Fold(count, "outer"))), matrices(*[a] * count)),
        (
            Chain((Join((1, 1)), experts, Transpose(), Fold(count, "inner"))),
            matrices(*[a] * 2 * count),
        ),
        (Pad(a, a + count), make(a)),
        (Shard(0, count), make(count * a)),
        (Shard(None, count), make(a)),
        (Shard(0, 2 * groups, groups), make(groups * head)),
    ]
    return draw(st.sampled_from(options))


@given(cases())
def test_an_operation_is_undone_bit_for_bit(case: tuple[Op, Tensors]) -> None:
    op, tensors = case
    assert same_bits(op.inverse(op.forward(tensors)), tensors)


@given(cases())
def test_an_operation_only_moves_elements(case: tuple[Op, Tensors]) -> None:
    op, tensors = case
    index = torch.arange(sum(t.numel() for t in tensors)) + 1
    pieces = torch.split(index, [t.numel() for t in tensors])
    labels = [p.reshape(t.shape) for p, t in zip(pieces, tensors, strict=True)]
    flat = torch.cat([t.reshape(-1) for t in tensors])
    for moved, label in zip(op.forward(tensors), op.forward(labels), strict=True):
        kept = label > 0
        assert same_bits([moved[kept]], [flat[label[kept] - 1]])


def test_query_groups_interleave_as_megatron_has_them() -> None:
    query = torch.tensor([[0.0], [1.0], [2.0], [3.0]])  # 4 heads of 1, 2 groups
    key, value = torch.tensor([[10.0], [11.0]]), torch.tensor([[20.0], [21.0]])
    (fused,) = GroupHeads(4, 2).forward([query, key, value])
    assert fused.flatten().tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_grouped_experts_are_views_of_three_axes() -> None:
    gates = [torch.full((3, 2), float(e)) for e in range(2)]  # ffn 3, hidden 2
    ups = [torch.full((3, 2), 10.0 + e) for e in range(2)]
    order = [t for pair in zip(gates, ups, strict=True) for t in pair]
    op = Chain((Join((1, 1)), Stack(2), Transpose(), Fold(2, "inner")))
    (weight1,) = op.forward(order)
    assert weight1.shape == (2, 12)
    view = weight1.view(2, 2, 6)
    assert all(torch.equal(view[e], torch.cat([gates[e], ups[e]]).T) for e in range(2))


def test_tied_tensors_that_differ_are_refused() -> None:
    first = torch.ones(2)
    assert same_bits(Tie().inverse(Tie().forward([first, first.clone()])), [first, first])
    with pytest.raises(ValueError, match="tied tensors differ"):
        Tie().forward([first, torch.zeros(2)])


@pytest.mark.parametrize(("ranks", "units", "expected"), [(4, 2, [0, 0, 1, 1]), (2, 2, [0, 1])])
def test_fewer_key_heads_than_ranks_are_copied(ranks: int, units: int, expected: list[int]) -> None:
    pieces = Shard(0, ranks, units).forward([torch.tensor([0, 1])])
    assert [int(piece) for piece in pieces] == expected


def places(experts: int) -> list[Place]:
    vocab = 128
    return [
        Place(1, range(4), range(experts), vocab),
        Place(2, range(2, 4), range(experts // 2, experts), vocab),
        Place(4, range(1, 3), range(experts), vocab, is_first=False),
    ]


ALL = [d for dialects in DIALECTS.values() for d in dialects]


@pytest.mark.parametrize("dialect", ALL, ids=lambda d: "-".join((d.framework, *d.keys)))
@pytest.mark.parametrize("name", CONFIGS)
def test_shards_in_are_shards_out_for_every_family_and_dialect(name: str, dialect: Dialect) -> None:
    config = {"model_type": name.removesuffix("_tied").removesuffix("_bias"), **CONFIGS[name]}
    family, sizes = family_of(config, where="config"), sizes_of(config, where="config")
    seed = 0
    for place in places(sizes.experts):
        names = set()
        for entry in entries(family, sizes, dialect, place):
            seed += 1
            parts = [random(p.shape, torch.bfloat16, seed + i) for i, p in enumerate(entry.pieces)]
            shards = [entry.encode(parts, rank) for rank in range(place.ranks)]
            assert {tuple(s.shape) for s in shards} == {entry.shape}
            assert same_bits(entry.decode(shards), parts)
            names.add(entry.name)
        assert len(names) > 10


@pytest.mark.parametrize("name", CONFIGS)
def test_every_dialect_covers_the_same_hugging_face_tensors(name: str) -> None:
    config = {"model_type": name.removesuffix("_tied").removesuffix("_bias"), **CONFIGS[name]}
    family, sizes = family_of(config, where="config"), sizes_of(config, where="config")
    covered = [
        {piece.name for entry in entries(family, sizes, d, whole(sizes)) for piece in entry.pieces}
        for d in ALL
    ]
    assert all(names == covered[0] for names in covered)
