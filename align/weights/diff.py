"""Compare two checkpoints tensor by tensor under their Hugging Face names."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from align.core.text import Text
from align.layout.dialect import MEGATRON_LOCAL
from align.layout.entries import Entry, entries, whole
from align.layout.family import Family
from align.weights.checkpoint import EMBEDDING, HEAD, Checkpoint
from align.weights.measure import (
    Distance,
    Relation,
    coarser,
    distance,
    equal_bits,
    is_scaled,
    relation,
)
from align.weights.permutations import recognise


@dataclass(frozen=True, slots=True)
class WeightDiff:
    """Two tensors of one name that are not equal bit for bit.

    Args:
        shapes: reference, candidate.
        dtypes: likewise.
        distance: None where the shapes do not match.
        detail: the order, the factor or the other name, where one was recognised.
    """

    name: str
    relation: Relation
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    distance: Distance | None
    detail: Text | None = None

    @property
    def rel_l2(self) -> float:
        """Relative error, infinite where the shapes do not match."""
        return math.inf if self.distance is None else self.distance.rel_l2


@dataclass(frozen=True, slots=True)
class Head:
    """Whether a side's output head is its embedding."""

    is_shared: bool  # no head of its own, or an equal one
    is_declared: bool  # the configuration ties them


@dataclass(frozen=True, slots=True)
class WeightsDiff:
    """Two checkpoints compared.

    Args:
        num_compared: names on both sides.
        num_equal: of these, equal bit for bit.
        differing: the others, in the order of the model.
        vocab: rows of embedding and head on either side, without padding.
        heads: None on a side without embedding or head.
        copies: names whose ranks hold unequal copies, by side.
        padding: names with padding that is not zero, by side.
    """

    num_compared: int
    num_equal: int
    differing: tuple[WeightDiff, ...]
    vocab: tuple[int, int]
    heads: tuple[Head | None, Head | None]
    copies: tuple[tuple[str, ...], tuple[str, ...]]
    padding: tuple[tuple[str, ...], tuple[str, ...]]


def compare(
    reference: Checkpoint, candidate: Checkpoint, family: Family, done: Callable[[str], None]
) -> WeightsDiff:
    """Read both, one bundle of tensors at a time."""
    digests: dict[str, bytes] = {}  # of candidate tensors that differ
    differing: list[WeightDiff] = []
    num_compared = 0
    for entry in bundles(reference, family):
        names = [p.name for p in entry.pieces]
        shared = [n for n in names if n in reference.sources and n in candidate.sources]
        num_compared += len(shared)
        ours = [_common_rows(reference, candidate, name) for name in shared]
        theirs = [_common_rows(candidate, reference, name) for name in shared]
        found = [_diff(n, a, b) for n, a, b in zip(shared, ours, theirs, strict=True)]
        if len(shared) == len(names):
            found = _with_order(found, ours, theirs, entry, reference.sizes.head_dim)
        for diff, tensor in zip(found, theirs, strict=True):
            if diff is not None and diff.relation is Relation.DIFFERENT:
                digests[diff.name] = _digest(tensor)
        differing += [diff for diff in found if diff is not None]
        for name in shared:
            done(name)
    differing = _with_other_names(differing, digests, reference)
    return WeightsDiff(
        num_compared=num_compared,
        num_equal=num_compared - len(differing),
        differing=tuple(differing),
        vocab=(reference.sizes.vocab, candidate.sizes.vocab),
        heads=(_head(reference), _head(candidate)),
        copies=(_unequal_copies(reference), _unequal_copies(candidate)),
        padding=(_nonzero_padding(reference), _nonzero_padding(candidate)),
    )


def bundles(checkpoint: Checkpoint, family: Family) -> Iterator[Entry]:
    """Yield the parts that belong together, as Megatron bundles them, one expert at a time."""
    sizes = checkpoint.sizes
    return entries(family, sizes, MEGATRON_LOCAL, whole(sizes))


def _common_rows(own: Checkpoint, other: Checkpoint, name: str) -> Tensor:
    """Read a tensor; of a vocabulary only the rows both sides have."""
    tensor = own.load(name)
    is_vocabulary = name in (EMBEDDING, HEAD)
    return tensor[: other.sizes.vocab] if is_vocabulary else tensor


def _diff(name: str, reference: Tensor, candidate: Tensor) -> WeightDiff | None:
    kind = relation(reference, candidate)
    if kind is Relation.EQUAL:
        return None
    detail, measured = None, None
    if reference.shape == candidate.shape:
        measured = distance(reference, candidate)
        if any(measured.num_nonfinite) and kind is Relation.DIFFERENT:
            kind = Relation.NONFINITE
        elif kind is Relation.DIFFERENT and is_scaled(measured, coarser(reference, candidate)):
            kind = Relation.SCALED
            detail = Text(f"times {measured.gain:.6g}", f"乘以 {measured.gain:.6g}")
    shapes = tuple(reference.shape), tuple(candidate.shape)
    dtypes = str(reference.dtype)[6:], str(candidate.dtype)[6:]
    return WeightDiff(name, kind, shapes, dtypes, measured, detail)


def _with_order(
    found: list[WeightDiff | None],
    ours: list[Tensor],
    theirs: list[Tensor],
    entry: Entry,
    head_dim: int,
) -> list[WeightDiff | None]:
    """Call parts of a bundle permuted where the bundle has the same rows in another order."""
    is_open = any(diff is not None and diff.relation is Relation.DIFFERENT for diff in found)
    if not is_open or any(a.shape != b.shape for a, b in zip(ours, theirs, strict=True)):
        return found
    dtype = coarser(ours[0], theirs[0])
    name = recognise([t.to(dtype) for t in ours], [t.to(dtype) for t in theirs], entry.op, head_dim)
    if name is None:
        return found
    return [
        replace(diff, relation=Relation.PERMUTED, detail=name)
        if diff is not None and diff.relation is Relation.DIFFERENT
        else diff
        for diff in found
    ]


def _digest(tensor: Tensor) -> bytes:
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    header = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return hashlib.blake2b(flat.numpy().data, digest_size=16, key=header[:64]).digest()


def _with_other_names(
    differing: list[WeightDiff], digests: dict[str, bytes], reference: Checkpoint
) -> list[WeightDiff]:
    """Find tensors whose numbers the reference keeps under another name.

    Only for these the reference's tensors of the same shape are read once more.
    """
    shapes = {diff.shapes[0] for diff in differing if diff.name in digests}
    wanted = set(digests.values())
    held: dict[bytes, str] = {}
    for name in reference.sources if wanted else ():
        if reference.shape(name) in shapes:
            digest = _digest(reference.load(name))
            if digest in wanted:
                held.setdefault(digest, name)
    found = []
    for diff in differing:
        other = held.get(digests.get(diff.name, b""))
        if other is not None:
            detail = Text(f"is {other}", f"实为 {other}")
            diff = replace(diff, relation=Relation.OTHER_TENSOR, detail=detail)
        found.append(diff)
    return found


def _head(side: Checkpoint) -> Head | None:
    if EMBEDDING not in side.sources or HEAD not in side.sources:
        return None
    same = side.is_tied
    if not same and side.dtype(EMBEDDING) == side.dtype(HEAD):
        same = equal_bits(side.load(EMBEDDING), side.load(HEAD))
    return Head(same, side.sizes.tied)


def _unequal_copies(side: Checkpoint) -> tuple[str, ...]:
    return tuple(name for name in side.sources if side.unequal_copies(name))


def _nonzero_padding(side: Checkpoint) -> tuple[str, ...]:
    found = []
    for name in (EMBEDDING, HEAD):
        rows = side.padding(name) if name in side.sources else None
        if rows is not None and bool(rows.count_nonzero()):
            found.append(name)
    return tuple(found)
