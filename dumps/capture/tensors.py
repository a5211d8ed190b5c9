"""Tensors of a step kept whole, beside their sketches: those asked for by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dumps.capture.device import start_copy
from dumps.store.tensor_shards import FORMAT, shard_path

if TYPE_CHECKING:
    from dumps.capture.sketch.token_keys import Tokens

MOST_BYTES = 2 << 30
"""Of one rank and step, on the host; what comes later in the step is left out, and said."""


@dataclass
class WholeTensors:
    """The whole tensors of one step; each is on its way to the host as soon as it is kept.

    Args:
        patterns: shell patterns of module names.
        most_bytes: kept at most.
    """

    patterns: Sequence[str]
    most_bytes: int = MOST_BYTES
    num_bytes: int = 0
    _parts: list[_Kept] = field(default_factory=list)
    _tokens: dict[int, tuple[Tokens, Callable[[], dict[str, Tensor]]]] = field(default_factory=dict)
    _wanted: dict[str, bool] = field(default_factory=dict)

    def wants(self, name: str) -> bool:
        """Tell whether a module is asked for."""
        if name not in self._wanted:
            self._wanted[name] = any(fnmatchcase(name, pattern) for pattern in self.patterns)
        return self._wanted[name]

    @property
    def limit_text(self) -> str:
        """Say why a tensor is not kept."""
        return f"more than {self.most_bytes / (1 << 30):.3g} GiB in one step"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self._parts

    def keep(
        self,
        address: tuple[str, str, int],
        rows: Tensor,
        tokens: Tokens,
        shape: torch.Size,
        first_feature: int,
    ) -> bool:
        """Copy one tensor; False where that would be too much.

        Args:
            address: module, phase, optimizer step.
            rows: [tokens, features].
            shape: of the tensor in the model.
            first_feature: index of the first feature in the whole tensor, for a shard.
        """
        size = rows.numel() * rows.element_size()
        if self.num_bytes + size > self.most_bytes:
            return False
        self.num_bytes += size
        if id(tokens) not in self._tokens:
            self._tokens[id(tokens)] = tokens, _copy(_table(tokens))
        number = list(self._tokens).index(id(tokens))
        self._parts.append(_Kept(address, tuple(shape), first_feature, number, _copy(rows)))
        return True

    def files(self, step: int, rank: int) -> dict[str, Callable[[Path], None]]:
        """Return what writes the step's file, by its path below the run folder."""
        if self.is_empty:
            return {}
        parts, tables = list(self._parts), [arrived for _, arrived in self._tokens.values()]
        write = partial(_write, parts=parts, tables=tables, step=step, rank=rank)
        return {shard_path(Path(), step, rank).as_posix(): write}


@dataclass(frozen=True, slots=True)
class _Kept:
    """One tensor, or a part of one.

    Args:
        tokens: number of its table of tokens.
        arrived: waits for the copy.
    """

    address: tuple[str, str, int]
    shape: tuple[int, ...]
    first_feature: int
    tokens: int
    arrived: Callable[[], dict[str, Tensor]]


def _copy(tensor: Tensor) -> Callable[[], dict[str, Tensor]]:
    """Start a copy to the host; training may write into its own tensor afterwards."""
    own = tensor.detach()
    own = own.clone(memory_format=torch.contiguous_format) if own.device.type == "cpu" else own
    return start_copy({"values": own})


def _table(tokens: Tokens) -> Tensor:
    """Return int64 [3, n]: keys, places in the own sequence (-1: unknown), rows of the batch."""
    keys, places, index = tokens.keys, tokens.places, tokens.index
    if index is None:
        index = torch.arange(len(keys), device=keys.device)
    places = torch.full_like(keys, -1) if places is None else places
    return torch.stack([keys, places.to(keys), index.to(keys) // tokens.shape[1]])


def _write(
    path: Path,
    *,
    parts: Sequence[_Kept],
    tables: Sequence[Callable[[], dict[str, Tensor]]],
    step: int,
    rank: int,
) -> None:
    from safetensors.torch import save_file

    tensors = {f"{i:06d}": part.arrived()["values"] for i, part in enumerate(parts)}
    tensors |= {f"tokens.{i}": arrived()["values"] for i, arrived in enumerate(tables)}
    records = [[*part.address, list(part.shape), part.first_feature, part.tokens] for part in parts]
    document = {"step": step, "rank": rank, "records": records}
    text = json.dumps(document).encode()
    tensors["document"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    save_file(tensors, path, {"format": FORMAT})
