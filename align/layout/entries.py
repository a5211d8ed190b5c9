"""The tensors one rank of one layout holds, each with the parts it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from align.layout.dialect import Dialect, full_name
from align.layout.family import Family, Form, Part, Rule
from align.layout.ops import Op, Pad, Shard, Tensors
from align.layout.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one model: whole Hugging Face name and shape, and how it is cut and padded.

    Args:
        repeats: how many heads a norm is applied to, each by itself; 0 for all other tensors.
    """

    name: str
    shape: tuple[int, ...]
    shard: Shard
    pad: Pad | None = None
    repeats: int = 0

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one rank's piece."""
        shape = list(self.shape)
        if self.pad is not None:
            shape[0] = self.pad.padded
        axis = self.shard.axis
        if axis is not None:
            shape[axis] = self.shard.size(shape[axis])
        return tuple(shape)

    def cut(self, whole: Tensor) -> Tensors:
        """Return every rank's piece."""
        padded = self.pad.forward([whole]) if self.pad else [whole]
        return self.shard.forward(padded)

    def merge(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the whole tensor, without its padding."""
        whole = self.shard.inverse(pieces)
        return (self.pad.inverse(whole) if self.pad else whole)[0]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a layout, as every rank of a tensor-parallel group names it.

    Args:
        name: in the layout; the layer's number is the rank's own.
        pieces: Hugging Face tensors it is made of, in order.
        op: makes a rank's tensor of a rank's pieces.
    """

    name: str
    pieces: tuple[Piece, ...]
    op: Op

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one rank's tensor."""
        meta = [torch.empty(piece.local_shape, device="meta") for piece in self.pieces]
        return tuple(self.op.forward(meta)[0].shape)

    def encode(self, parts: Sequence[Tensor], rank: int) -> Tensor:
        """Return the tensor one rank holds of whole parts."""
        cut = [p.cut(part)[rank] for p, part in zip(self.pieces, parts, strict=True)]
        return self.op.forward(cut)[0]

    def decode(self, tensors: Sequence[Tensor]) -> Tensors:
        """Return the whole parts of every rank's tensor, in rank order."""
        ranks = [self.op.inverse([tensor]) for tensor in tensors]
        return [
            p.merge(pieces) for p, pieces in zip(self.pieces, zip(*ranks, strict=True), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of a model a rank, or a virtual pipeline chunk of it, holds.

    Args:
        ranks: size of the tensor-parallel group.
        layers: global numbers; the first has the rank's own number 0.
        experts: global numbers, likewise.
        padded_vocab: rows of embedding and head with their padding, over all ranks.
    """

    ranks: int
    layers: range
    experts: range
    padded_vocab: int
    is_first: bool = True
    is_last: bool = True


def whole(sizes: Sizes, *, ranks: int = 1, padded_vocab: int = 0) -> Place:
    """Return the place that holds every layer and expert."""
    rows = padded_vocab or sizes.vocab
    return Place(ranks, range(sizes.layers), range(sizes.experts), rows)


def entries(family: Family, sizes: Sizes, dialect: Dialect, place: Place) -> Iterator[Entry]:
    """Yield every tensor at a place, in the order of the model: embedding, layers, norm, head."""
    once = [r for r in family.rules if r.where == "once" and r.when(sizes)]
    if place.is_first:
        yield from _instances(once[0], sizes, dialect, place, None)
    for layer in place.layers:
        kind = "experts" if layer in sizes.moe_layers else "dense"
        for rule in family.rules:
            if rule.where in ("every", kind) and rule.when(sizes):
                yield from _instances(rule, sizes, dialect, place, layer)
    for rule in once[1:] if place.is_last else ():
        yield from _instances(rule, sizes, dialect, place, None)


def _instances(
    rule: Rule, sizes: Sizes, dialect: Dialect, place: Place, layer: int | None
) -> Iterator[Entry]:
    form = rule.form(dialect.keys)
    per_expert = "{e}" in rule.parts[0].name
    if form is None:
        for expert in place.experts if per_expert else (0,):
            for part in rule.parts:
                single = Form(part.name)
                yield _entry((part,), single, rule, sizes, dialect, place, layer, (expert,))
    elif per_expert and "{e}" not in form.name:
        yield _entry(rule.parts, form, rule, sizes, dialect, place, layer, tuple(place.experts))
    else:
        for expert in place.experts if per_expert else (0,):
            yield _entry(rule.parts, form, rule, sizes, dialect, place, layer, (expert,))


def _entry(
    parts: tuple[Part, ...],
    form: Form,
    rule: Rule,
    sizes: Sizes,
    dialect: Dialect,
    place: Place,
    layer: int | None,
    experts: tuple[int, ...],
) -> Entry:
    """Make an entry: its own name has the rank's numbers, its pieces the global ones."""
    pieces = tuple(_piece(part, rule, sizes, place, layer, e) for e in experts for part in parts)
    local_expert = experts[0] - place.experts.start if experts else 0
    is_local = dialect.framework == "megatron"
    local_layer = (layer or 0) - (place.layers.start if is_local else 0)
    name = form.name.replace("{e}", str(local_expert if is_local else experts[0]))
    return Entry(
        full_name(dialect.framework, name, rule.where, local_layer),
        pieces,
        form.build(sizes, place.ranks, len(experts)),
    )


def _piece(
    part: Part, rule: Rule, sizes: Sizes, place: Place, layer: int | None, expert: int
) -> Piece:
    shape = tuple(sizes.length(axis) for axis in part.shape)
    name = full_name("huggingface", part.name.replace("{e}", str(expert)), rule.where, layer or 0)
    units = sizes.length(part.units) if part.units else 0
    is_padded = part.shape[0] == "vocab" and place.padded_vocab != sizes.vocab
    pad = Pad(sizes.vocab, place.padded_vocab) if is_padded else None
    repeats = sizes.length(part.repeats) if part.repeats else 0
    return Piece(name, shape, Shard(part.axis, place.ranks, units), pad, repeats)
