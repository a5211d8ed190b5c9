"""A checkpoint seen as its Hugging Face tensors, whatever layout its files have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from align.core.text import Text
from align.layout.canonical_names import canonical
from align.layout.dialect import DIALECTS
from align.layout.entries import Entry, Place, entries
from align.layout.family import Family
from align.layout.recognise_names import framework_of, is_weight, unwrapped
from align.layout.sizes import Sizes
from dumps.readers.weights import StoredTensor, WeightFiles, WeightShard

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")
_VOCABULARY = ("embedding.word_embeddings.weight", EMBEDDING, "output_layer.weight", HEAD)
_KEPT_DECODED = 3  # a grouped tensor gives many parts; this many stay in memory


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A tensor that no rule covers.

    Args:
        reason: what is wrong with its name or shape.
    """

    name: str
    shape: tuple[int, ...]
    source: str
    reason: Text


@dataclass(frozen=True, slots=True)
class Source:
    """The stored tensors of one entry, by tensor-parallel rank."""

    entry: Entry
    stored: tuple[StoredTensor, ...]
    number: int  # of the part among the entry's


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Hugging Face tensors of a checkpoint, read one at a time.

    Args:
        files: what it was read from.
        framework: whose layout the files have.
        sizes: of the model; ``vocab`` is what this checkpoint has of it.
        padded_vocab: rows of the embedding as stored, over all ranks.
        sources: by Hugging Face name.
        uncovered: tensors of the files that no rule covers.
        missing: Hugging Face names that no file has.
        is_tied: there is no head of its own.
    """

    files: WeightFiles
    framework: str
    sizes: Sizes
    padded_vocab: int
    sources: Mapping[str, Source]
    uncovered: tuple[Uncovered, ...]
    missing: tuple[str, ...]
    is_tied: bool
    _decoded: dict[int, list[Tensor]] = field(default_factory=dict)

    def load(self, name: str) -> Tensor:
        """Read one tensor, without the padding of its vocabulary."""
        source = self.sources[name]
        key = id(source.entry)
        if key not in self._decoded:
            while len(self._decoded) >= _KEPT_DECODED:
                del self._decoded[next(iter(self._decoded))]
            tensors = [stored.load() for stored in source.stored]
            self._decoded[key] = source.entry.decode(tensors)
        return self._decoded[key][source.number]

    def dtype(self, name: str) -> str:
        """Return a tensor's stored dtype."""
        return self.sources[name].stored[0].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's whole shape without padding."""
        source = self.sources[name]
        return source.entry.pieces[source.number].shape

    def padding(self, name: str) -> Tensor | None:
        """Return the rows beyond the vocabulary, None where there are none."""
        source = self.sources[name]
        piece = source.entry.pieces[source.number]
        if piece.pad is None:
            return None
        return piece.shard.inverse([s.load() for s in source.stored])[0][piece.pad.rows :]

    def unequal_copies(self, name: str) -> bool:
        """Tell whether ranks that should hold the same tensor hold different ones."""
        source = self.sources[name]
        is_copied = all(piece.shard.axis is None for piece in source.entry.pieces)
        if not is_copied or len(source.stored) < 2:
            return False
        first, *others = (stored.load() for stored in source.stored)
        return any(not torch.equal(_bits(first), _bits(other)) for other in others)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def open_checkpoint(files: WeightFiles, family: Family, sizes: Sizes) -> Checkpoint:
    """Match every stored tensor with the rule that covers it."""
    framework = framework_of(unwrapped(name) for shard in files.shards for name in shard.tensors)
    ranks = 1 + max((shard.tensor_rank for shard in files.shards), default=0)
    rows = _vocabulary_rows(files, framework, sizes.vocab, ranks)
    own = replace(sizes, vocab=min(sizes.vocab, rows))
    sources: dict[str, Source] = {}
    uncovered: list[Uncovered] = []
    for place, shards in _places(files.shards, framework, own, ranks, rows):
        tables = [_table(family, own, framework, replace(place, ranks=r)) for r in (ranks, 1)]
        _match(shards, tables, sources, uncovered)
    is_tied = own.tied and HEAD not in sources and EMBEDDING in sources
    if is_tied:
        sources[HEAD] = sources[EMBEDDING]
    missing = tuple(name for name in canonical(family, own) if name not in sources)
    return Checkpoint(files, framework, own, rows, sources, tuple(uncovered), missing, is_tied)


def _vocabulary_rows(files: WeightFiles, framework: str, vocab: int, ranks: int) -> int:
    """Return the rows of the embedding over all ranks, as stored."""
    for shard in files.shards:
        for name, stored in shard.tensors.items():
            if unwrapped(name) in _VOCABULARY and stored.shape:
                is_whole = stored.shape[0] == vocab or framework == "huggingface"
                return stored.shape[0] * (1 if is_whole else ranks)
    return vocab


def _places(
    shards: Iterable[WeightShard], framework: str, sizes: Sizes, ranks: int, rows: int
) -> Iterator[tuple[Place, list[WeightShard]]]:
    """Group the shards of one tensor-parallel group, and number its layers and experts.

    Stages follow each other chunk by chunk: chunk 0 of every stage, then chunk 1 (Megatron's
    interleaved pipeline). How many layers each has is counted, so uneven stages are no matter.
    """
    groups: dict[tuple[int, int, int], list[WeightShard]] = {}
    for shard in shards:
        groups.setdefault((shard.chunk, shard.pipeline_rank, shard.expert_rank), []).append(shard)
    num_expert_ranks = 1 + max((key[2] for key in groups), default=0)
    first_layer, layers_of = 0, {}
    for stage in sorted({key[:2] for key in groups}):
        fellow = next(group for key, group in groups.items() if key[:2] == stage)
        count = _num_layers(fellow) if framework == "megatron" else sizes.layers
        layers_of[stage] = range(first_layer, first_layer + count)
        first_layer += count if framework == "megatron" else 0
    for key, group in sorted(groups.items(), key=lambda item: item[0]):
        share = sizes.experts // num_expert_ranks
        experts = range(key[2] * share, (key[2] + 1) * share)
        group.sort(key=lambda shard: shard.tensor_rank)
        yield Place(ranks, layers_of[key[:2]], experts, rows), group


def _num_layers(group: list[WeightShard]) -> int:
    names = (_LAYER.match(unwrapped(name)) for shard in group for name in shard.tensors)
    return 1 + max((int(match.group(1)) for match in names if match), default=-1)


def _table(family: Family, sizes: Sizes, framework: str, place: Place) -> dict[str, Entry]:
    dialects = reversed(DIALECTS[framework])  # of two with one name the first in the list counts
    return {e.name: e for dialect in dialects for e in entries(family, sizes, dialect, place)}


def _match(
    shards: list[WeightShard],
    tables: list[dict[str, Entry]],
    sources: dict[str, Source],
    uncovered: list[Uncovered],
) -> None:
    """Give each name of a tensor-parallel group its entry, or say why it has none."""
    by_name: dict[str, list[StoredTensor]] = {}
    for shard in shards:
        for name, stored in shard.tensors.items():
            if is_weight(name):
                by_name.setdefault(unwrapped(name), []).append(stored)
    for name, stored_list in by_name.items():
        entry, reason = _entry_for(name, stored_list, tables)
        if entry is None:
            first = stored_list[0]
            uncovered.append(Uncovered(name, first.shape, first.source, reason))
            continue
        is_whole = entry is not tables[0].get(name)
        by_rank = tuple(stored_list[:1] if is_whole else stored_list)
        for number, piece in enumerate(entry.pieces):
            sources.setdefault(piece.name, Source(entry, by_rank, number))


def _entry_for(
    name: str, stored: list[StoredTensor], tables: list[dict[str, Entry]]
) -> tuple[Entry | None, Text]:
    """Return the entry of ranks' pieces, else that of whole tensors on every rank."""
    sharded, whole = (table.get(name) for table in tables)
    shapes = {tensor.shape for tensor in stored}
    if sharded is None or whole is None:
        return None, Text("no rule has this name", "没有规则覆盖这个名称")
    if len(shapes) == 1:
        (shape,) = shapes
        num_ranks = sharded.pieces[0].shard.ranks
        if shape == sharded.shape and len(stored) == num_ranks:
            return sharded, Text("", "")
        if shape == whole.shape:
            return whole, Text("", "")
        if shape == sharded.shape:
            return None, Text(
                f"{len(stored)} of {num_ranks} tensor-parallel ranks have it",
                f"{num_ranks} 个张量并行 rank 中只有 {len(stored)} 个有它",
            )
    expected = " × ".join(map(str, whole.shape))
    return None, Text(
        f"the configuration makes it {expected} in all",
        f"按配置，其完整形状应为 {expected}",
    )
