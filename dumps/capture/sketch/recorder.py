"""The sketches of one step, held on the device until the step is over."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumps.capture.sketch.hash import digest, signs
from dumps.capture.sketch.sums import ROW_SALT, SIDE, Columns, Sums, sums_of
from dumps.capture.sketch.token_keys import Tokens

_DIGEST_SALT = 3

Address = tuple[str, str, int]
"""Module or parameter name, phase, and optimizer step within the training step."""


@dataclass
class Recorder:
    """Adds tensors up by address; memory is 1.3 KB an address, whatever the tensors' sizes.

    Args:
        unaligned: modules whose output has no row a token, such as those of single experts.
        problems: what went wrong, once each; a capture never stops the training.
        facts: further numbers of the step.
    """

    sums: dict[Address, Sums] = field(default_factory=dict)
    unaligned: set[str] = field(default_factory=set)
    problems: set[str] = field(default_factory=set)
    facts: dict[str, int] = field(default_factory=dict)
    update: int = 0
    _columns: Columns = field(default_factory=Columns)

    def add_tokens(
        self, name: str, phase: str, rows: Tensor, tokens: Tokens, shape: torch.Size
    ) -> None:
        """Add an activation or its gradient, [tokens, features]."""
        columns = self._columns.of(rows.shape[1], rows.device)
        self._add(name, phase, rows, tokens.signs, tokens.digest, columns, tuple(shape))

    def add_weight(
        self,
        name: str,
        phase: str,
        tensor: Tensor,
        first_row: int = 0,
        *,
        counts_bfloat16: bool = False,
    ) -> None:
        """Add a parameter, its gradient or its optimizer state; one of more dimensions than two
        is laid out by its last one.

        Args:
            first_row: index of the first row in the whole tensor, for a shard.
        """
        if not tensor.numel():
            return
        vector = tensor.ndim < 2
        flat = tensor.reshape(1, -1) if vector else tensor.reshape(-1, tensor.shape[-1])
        start, column = (0, first_row) if vector else (first_row, 0)
        keys = torch.arange(start, start + len(flat), device=flat.device)
        ones = torch.ones(len(keys), 1, device=flat.device)
        rows = torch.cat([signs(keys, ROW_SALT, SIDE), ones], 1)
        columns = self._columns.of(flat.shape[1], flat.device, column)
        self._add(
            name,
            phase,
            flat,
            rows,
            digest(keys, _DIGEST_SALT),
            columns,
            tuple(tensor.shape),
            counts_bfloat16,
        )

    def _add(
        self,
        name: str,
        phase: str,
        flat: Tensor,
        rows: Tensor,
        row_digest: Tensor,
        columns: tuple[Tensor, Tensor],
        shape: tuple[int, ...],
        counts_bfloat16: bool = False,
    ) -> None:
        key = (name, phase, self.update)
        made = sums_of(
            flat,
            rows,
            row_digest,
            columns,
            order=len(self.sums),
            shape=shape,
            counts_bfloat16=counts_bfloat16,
        )
        if key in self.sums:
            self.sums[key].add(made)
        else:
            self.sums[key] = made
