"""Plan a checkpoint in another layout: which tensors which file gets, made on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from align.core.errors import ConfigError
from align.layout.dialect import HUGGINGFACE, Dialect
from align.layout.entries import Entry, Place, entries, whole
from align.layout.family import Family
from align.layout.sizes import Sizes
from align.weights.checkpoint import EMBEDDING, HEAD, Checkpoint
from dumps.store.weights_writer import NewTensor


@dataclass(frozen=True, slots=True)
class Parallel:
    """Sizes of the groups a Megatron checkpoint is for.

    Args:
        chunks: virtual pipeline chunks of each stage.
        vocab_multiple: the vocabulary is padded to a multiple of this times ``tensor``.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    chunks: int = 1
    vocab_multiple: int = 128


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The tensors of one virtual chunk of one rank."""

    tensor_rank: int
    pipeline_rank: int
    expert_rank: int
    chunk: int
    tensors: tuple[NewTensor, ...]


def to_huggingface(source: Checkpoint, family: Family) -> list[NewTensor]:
    """Plan a Hugging Face checkpoint; a tied head is left out."""
    sizes = source.sizes
    found = entries(family, sizes, HUGGINGFACE, whole(sizes))
    return [_new(source, entry, 0) for entry in found if not _is_shared_head(source, entry)]


def to_megatron(
    source: Checkpoint, family: Family, dialect: Dialect, parallel: Parallel
) -> Iterator[RankPlan]:
    """Plan the files of every rank.

    Raises:
        ConfigError: The model cannot be cut that way.
    """
    sizes = source.sizes
    check(sizes, family, dialect, parallel)
    for tensor_rank in range(parallel.tensor):
        for stage in range(parallel.pipeline):
            for expert_rank in range(parallel.expert):
                for chunk in range(parallel.chunks):
                    place = _place(sizes, parallel, stage, expert_rank, chunk)
                    is_whole = place.is_first and place.is_last
                    kept = tuple(
                        _new(source, entry, tensor_rank)
                        for entry in entries(family, sizes, dialect, place)
                        if not (is_whole and _is_shared_head(source, entry))
                    )
                    yield RankPlan(tensor_rank, stage, expert_rank, chunk, kept)


def _place(sizes: Sizes, parallel: Parallel, stage: int, expert_rank: int, chunk: int) -> Place:
    """Return what a chunk holds: chunk c of stage p begins at c·L/chunks + p·L/(chunks·stages)."""
    per_chunk = sizes.layers // parallel.chunks
    count = per_chunk // parallel.pipeline
    first = chunk * per_chunk + stage * count
    share = sizes.experts // parallel.expert
    return Place(
        ranks=parallel.tensor,
        layers=range(first, first + count),
        experts=range(expert_rank * share, (expert_rank + 1) * share),
        padded_vocab=padded_vocab(sizes, parallel),
        is_first=stage == 0 and chunk == 0,
        is_last=stage == parallel.pipeline - 1 and chunk == parallel.chunks - 1,
    )


def padded_vocab(sizes: Sizes, parallel: Parallel) -> int:
    """Return the rows Megatron gives embedding and head."""
    multiple = parallel.vocab_multiple * parallel.tensor
    return -(-sizes.vocab // multiple) * multiple


def check(sizes: Sizes, family: Family, dialect: Dialect, parallel: Parallel) -> None:
    """Say so where a model cannot be cut into these ranks.

    Raises:
        ConfigError: Layers, experts, heads or widths do not divide.
    """
    if sizes.layers % (parallel.pipeline * parallel.chunks):
        raise _indivisible("layers", sizes.layers, "--pp times --vpp")
    if sizes.experts % parallel.expert or (parallel.expert > 1 and not sizes.experts):
        raise _indivisible("experts", sizes.experts, "--ep")
    if sizes.groups % parallel.tensor and not sizes.kv_lora:
        raise _indivisible("query groups", sizes.groups, "--tp (Megatron cuts between groups)")
    place = whole(sizes, ranks=parallel.tensor, padded_vocab=padded_vocab(sizes, parallel))
    for entry in entries(family, sizes, dialect, place):
        for piece in entry.pieces:
            axis = piece.shard.axis
            length = piece.pad.padded if piece.pad else piece.shape[axis or 0]
            if axis is not None and not piece.shard.divides(length):
                raise _indivisible(f"rows or columns of {piece.name}", length, "--tp")


def _indivisible(what: str, count: int, by: str) -> ConfigError:
    return ConfigError(
        where=by.split(" ")[0],
        problem=f"does not divide the model's {count} {what}",
        fix=f"choose {by} so that it divides {count}",
    )


def _is_shared_head(source: Checkpoint, entry: Entry) -> bool:
    """Tell a head that the model takes from its embedding."""
    if entry.pieces[0].name != HEAD or not source.sizes.tied:
        return False
    return source.is_tied or torch.equal(source.load(HEAD), source.load(EMBEDDING))


def _new(source: Checkpoint, entry: Entry, rank: int) -> NewTensor:
    dtypes = {source.dtype(piece.name) for piece in entry.pieces}
    if len(dtypes) > 1:
        raise ConfigError(
            where=source.files.path,
            key=entry.name,
            problem=f"is to be made of tensors of different dtypes ({', '.join(sorted(dtypes))})",
            fix="convert them to one dtype first",
        )
    make = partial(_make, source, entry, rank)
    return NewTensor(entry.name, entry.shape, dtypes.pop(), make)


def _make(source: Checkpoint, entry: Entry, rank: int) -> Tensor:
    parts: Sequence[Tensor] = [source.load(piece.name) for piece in entry.pieces]
    return entry.encode(parts, rank)
