"""The canonical address of a module's output: Hugging Face name and feature index.

A capture of any layout becomes comparable by giving each feature of each tensor this address: the
same operations that convert weights are applied to index tensors, so a fused or sharded module
names its own features and nothing has to be gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from align.layout.dialect import Dialect, full_name
from align.layout.entries import Entry, Place, entries
from align.layout.family import Family
from align.layout.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Address:
    """Where some features of a module belong.

    Args:
        name: Hugging Face name of the module.
        columns: int64, places of the features in the module's own output.
        features: int64, their indices in the Hugging Face module's output.
    """

    name: str
    columns: Tensor
    features: Tensor


def module_addresses(
    family: Family, sizes: Sizes, dialect: Dialect, place: Place, rank: int
) -> dict[str, tuple[Address, ...]]:
    """Return the addresses of the outputs of every module one rank has.

    Modules without weights of their own (a whole layer, attention, feed-forward) put out the
    hidden state. Experts held in one tensor have no module each, and so no address here.
    """
    found: dict[str, tuple[Address, ...]] = {}
    for entry in entries(family, sizes, dialect, place):
        if entry.name.endswith((".weight", "layer_norm_weight")):
            module, addresses = _of_weight(entry, rank)
            found[module] = addresses
    found.update(_containers(family, sizes, dialect, place))
    return found


def _of_weight(entry: Entry, rank: int) -> tuple[str, tuple[Address, ...]]:
    module = entry.name.removesuffix(".weight").removesuffix("_weight")
    if len(entry.pieces) == 1 and entry.pieces[0].name == "model.embed_tokens.weight":
        width = torch.arange(entry.pieces[0].shape[1])
        return module, (Address("model.embed_tokens", width, width),)
    labels = []
    for number, piece in enumerate(entry.pieces):
        index = torch.arange(piece.shape[0])
        labels.append(torch.stack([torch.full_like(index, number), index], 1))
    local = [_rows(piece_label, entry, n, rank) for n, piece_label in enumerate(labels)]
    mixed = entry.op.forward(local)[0]
    return module, tuple(_address(entry, mixed, n) for n in range(len(entry.pieces)))


def _rows(label: Tensor, entry: Entry, number: int, rank: int) -> Tensor:
    """Return the labels of the rows a rank has: a cut along the inputs leaves every output."""
    piece = entry.pieces[number]
    if piece.shard.axis != 0:
        return label
    if piece.pad is None:
        return piece.cut(label)[rank]
    missing = label.new_full((piece.pad.padded - piece.pad.rows, 2), -1)
    return piece.shard.forward([torch.cat([label, missing])])[rank]


def _address(entry: Entry, mixed: Tensor, number: int) -> Address:
    columns = (mixed[:, 0] == number).nonzero().flatten()
    name = entry.pieces[number].name.removesuffix(".weight")
    return Address(name, columns, mixed[columns, 1])


def _containers(
    family: Family, sizes: Sizes, dialect: Dialect, place: Place
) -> Iterator[tuple[str, tuple[Address, ...]]]:
    if dialect.framework != "megatron":
        return
    width = torch.arange(sizes.hidden)
    yield "embedding", (Address("model.embed_tokens", width, width),)
    for layer in place.layers:
        for theirs, ours in family.modules.items():
            has_experts = layer in sizes.moe_layers
            if theirs.startswith("mlp.") and not has_experts:
                continue
            features = torch.arange(sizes.experts) if ours == "mlp.gate" else width
            own = full_name("megatron", theirs, "every", layer - place.layers.start)
            name = full_name("huggingface", ours, "every", layer)
            yield own.rstrip("."), (Address(name.rstrip("."), features, features),)
