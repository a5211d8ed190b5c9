"""The sketches of one step, held on the device until the step is over."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumps.capture.sketch.repeat import Repeat
from dumps.capture.sketch.rooms import Rooms
from dumps.capture.sketch.sums import IndexSigns, Signs, Sums, sums_of
from dumps.capture.sketch.token_keys import Tokens
from dumps.capture.tensors import WholeTensors

Address = tuple[str, str, int]
"""Module or parameter name, phase, and optimizer step within the training step."""


@dataclass
class Recorder:
    """Adds tensors up by address; memory is 1.3 KB an address, whatever the tensors' sizes.

    Args:
        unaligned: modules whose output has no row a token, such as those of single experts.
        problems: what went wrong, once each; a capture never stops the training.
        facts: further numbers of the step.
        whole: takes the tensors that are kept whole; None where none are.
    """

    sums: dict[Address, Sums] = field(default_factory=dict)
    unaligned: set[str] = field(default_factory=set)
    problems: set[str] = field(default_factory=set)
    facts: dict[str, int] = field(default_factory=dict)
    update: int = 0
    whole: WholeTensors | None = None
    _signs: IndexSigns = field(default_factory=IndexSigns)
    _last: Repeat = field(default_factory=Repeat)
    _rooms: Rooms = field(default_factory=Rooms)

    def add_tokens(
        self,
        name: str,
        phase: str,
        rows: Tensor,
        tokens: Tokens,
        shape: torch.Size,
        *,
        first_feature: int = 0,
    ) -> None:
        """Add an activation or its gradient, [tokens, features].

        Args:
            first_feature: index of the first feature in the whole tensor, for a shard.
        """
        if not rows.numel():
            return
        if self.whole is not None:
            self.keep_whole(name, phase, rows, tokens, shape, first_feature)
        columns = self._signs.columns(first_feature, rows.shape[1], rows.device)
        made = self._last.of(
            rows,
            (id(tokens), first_feature),
            lambda: self._sums_of(rows, (tokens.signs, tokens.digest), columns),
        )
        self._add(name, phase, made, tuple(shape))

    def keep_whole(
        self,
        name: str,
        phase: str,
        rows: Tensor,
        tokens: Tokens,
        shape: torch.Size,
        first_feature: int = 0,
    ) -> None:
        """Keep an activation or its gradient whole, if it is one of those asked for."""
        if self.whole is None or not self.whole.wants(name):
            return
        kept = self.whole.keep((name, phase, self.update), rows, tokens, shape, first_feature)
        if not kept:
            self.problems.add(f"{name} ({phase}) is not kept whole: {self.whole.limit_text}")

    def add_weight(
        self,
        name: str,
        phase: str,
        tensor: Tensor,
        first_row: int = 0,
        *,
        first_column: int = 0,
        counts_bfloat16: bool = False,
    ) -> None:
        """Add a parameter, its gradient or its optimizer state; one of more dimensions than two
        is laid out by its last one.

        Args:
            first_row, first_column: index of the first row, and of the first element along the
                last axis, in the whole tensor, for a shard.
        """
        if not tensor.numel():
            return
        vector = tensor.ndim < 2
        flat = tensor.reshape(1, -1) if vector else tensor.reshape(-1, tensor.shape[-1])
        start, column = (0, first_row) if vector else (first_row, first_column)
        rows = self._signs.rows(start, len(flat), flat.device)
        columns = self._signs.columns(column, flat.shape[1], flat.device)
        made = self._sums_of(flat, rows, columns, counts_bfloat16)
        self._add(name, phase, made, tuple(tensor.shape))

    def _sums_of(
        self, tensor: Tensor, rows: Signs, columns: Signs, counts_bfloat16: bool = False
    ) -> Sums:
        return sums_of(
            tensor,
            rows,
            columns,
            counts_bfloat16=counts_bfloat16,
            digest_of_all=self._signs.digest(rows, columns),
            room=self._rooms.take(tensor.device),
        )

    def _add(self, name: str, phase: str, made: Sums, shape: tuple[int, ...]) -> None:
        key = (name, phase, self.update)
        if key in self.sums:
            self.sums[key].add(made)
        else:
            made.order, made.shape = len(self.sums), shape
            self.sums[key] = made
