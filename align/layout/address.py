"""The canonical address of what a module puts out: Hugging Face name and feature index.

A capture of any layout becomes comparable by giving each feature of each tensor this address: the
same operations that convert weights are applied to index tensors, so a fused or sharded module
names its own features and nothing has to be gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from align.layout.blocks import PASSING
from align.layout.dialect import Dialect, full_name
from align.layout.entries import Entry, Piece, Place, entries
from align.layout.family import Family
from align.layout.ops import Shard
from align.layout.sizes import Sizes

_EMBEDDING = "model.embed_tokens"
_FORWARD, _LAST = "decoder", "model"


@dataclass(frozen=True, slots=True)
class Address:
    """Where some features of a module belong.

    Args:
        name: Hugging Face name of the module.
        columns: int64, places of the features in the module's own output.
        features: int64, their indices in the Hugging Face module's output, one after the other.
        is_whole: every tensor-parallel rank puts out the same features.
    """

    name: str
    columns: Tensor
    features: Tensor
    is_whole: bool = True


def module_addresses(
    family: Family, sizes: Sizes, dialect: Dialect, place: Place, rank: int
) -> dict[str, tuple[Address, ...]]:
    """Return the addresses of the outputs of every module one rank has.

    Modules without weights of their own (a whole layer, attention, feed-forward) put out the
    hidden state; those with no address at all pass on what another module puts out. Experts see
    the tokens sent to them alone, and are not here.
    """
    found = dict(_containers(family, sizes, dialect, place))
    for entry in entries(family, sizes, dialect, place):
        is_expert = any(".experts." in piece.name for piece in entry.pieces)
        if entry.name.endswith((".weight", "layer_norm_weight")) and not is_expert:
            module = entry.name.removesuffix(".weight").removesuffix("_weight")
            if module not in found:
                found[module] = _outputs(entry, rank)
    if dialect.framework == "megatron":
        for layer in range(len(place.layers)):
            for name in PASSING:
                found.setdefault(full_name("megatron", name, "every", layer), ())
    return found


def input_addresses(
    family: Family, sizes: Sizes, dialect: Dialect, place: Place, rank: int
) -> dict[str, tuple[Address, ...]]:
    """Return the addresses of the inputs of the row-parallel modules one rank has."""
    found: dict[str, tuple[Address, ...]] = {}
    for entry in entries(family, sizes, dialect, place):
        piece = entry.pieces[0]
        if piece.shard.axis == 1 and ".experts." not in piece.name:
            features = piece.shard.forward([torch.arange(piece.shape[1])[None]])[rank][0]
            columns = torch.arange(len(features))
            address = Address(
                piece.name.removesuffix(".weight"), columns, features, place.ranks == 1
            )
            found[entry.name.removesuffix(".weight")] = (address,)
    return found


def row_labels(entry: Entry, rank: int) -> list[Tensor]:
    """Return for the rows a rank has of each piece: number of the piece, and row in the whole.

    Returns:
        int64 [rows, 2] a piece; -1 where a row is padding.
    """
    return [_labels(piece, number, rank) for number, piece in enumerate(entry.pieces)]


def is_copy(piece: Piece, rank: int) -> bool:
    """Tell whether a rank before this one holds the same part of a piece."""
    if piece.shard.axis is None:
        return rank > 0
    return rank % piece.shard.copies > 0


def _outputs(entry: Entry, rank: int) -> tuple[Address, ...]:
    first = entry.pieces[0]
    if first.repeats:
        return _of_each_head(first, rank)
    mixed = entry.op.forward(row_labels(entry, rank))[0]
    numbers = (n for n, p in enumerate(entry.pieces) if p.shard.axis != 0 or not is_copy(p, rank))
    return tuple(_address(entry, mixed, number) for number in numbers)


def _labels(piece: Piece, number: int, rank: int) -> Tensor:
    """Label rows: a cut along the inputs leaves every row."""
    index = torch.arange(piece.shape[0])
    label = torch.stack([torch.full_like(index, number), index], 1)
    if piece.shard.axis != 0:
        return label
    if piece.pad is not None:
        missing = label.new_full((piece.pad.padded - piece.pad.rows, 2), -1)
        label = torch.cat([label, missing])
    return piece.shard.forward([label])[rank]


def _address(entry: Entry, mixed: Tensor, number: int) -> Address:
    columns = (mixed[:, 0] == number).nonzero().flatten()
    piece = entry.pieces[number]
    is_whole = piece.shard.axis != 0 or piece.shard.ranks == 1
    return Address(piece.name.removesuffix(".weight"), columns, mixed[columns, 1], is_whole)


def _of_each_head(piece: Piece, rank: int) -> tuple[Address, ...]:
    """Return the address of a norm that is applied to each head by itself."""
    shard = Shard(0, piece.shard.ranks, piece.repeats)
    features = shard.forward([torch.arange(piece.repeats * piece.shape[0])])[rank]
    columns = torch.arange(len(features))
    name = piece.name.removesuffix(".weight")
    address = Address(name, columns, features, shard.ranks == 1)
    return () if rank % shard.copies else (address,)


def _containers(
    family: Family, sizes: Sizes, dialect: Dialect, place: Place
) -> Iterator[tuple[str, tuple[Address, ...]]]:
    if dialect.framework != "megatron":
        return
    width = torch.arange(sizes.hidden)
    yield "embedding", (Address(_EMBEDDING, width, width),)
    yield "embedding.word_embeddings", ()
    yield "embedding.embedding_dropout", ()
    yield _FORWARD, (Address(_LAST, width, width),) if place.is_last else ()
    for layer in place.layers:
        local = layer - place.layers.start
        for theirs, ours in family.modules.items():
            if theirs == "mlp.router" and layer not in sizes.moe_layers:
                continue
            features = torch.arange(sizes.experts) if theirs == "mlp.router" else width
            own = full_name("megatron", theirs, "every", local)
            name = full_name("huggingface", ours, "every", layer)
            yield own.rstrip("."), (Address(name.rstrip("."), features, features),)
