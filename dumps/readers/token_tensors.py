"""Token tensors by name: what dumps of ids, masks, positions and labels have in common.

A dump is rectangular (one padded tensor) or ragged (one list of ids a row); a tensor here is
either. Names are verl's; what other frameworks call them is translated on the way in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]

_SPELLINGS = {
    "input_ids": ("tokens", "input_tokens", "token_ids"),
    "prompts": ("prompt_ids", "prompt_token_ids"),
    "responses": ("response_ids", "completion_ids", "response_token_ids", "completion_token_ids"),
    "attention_mask": ("attn_mask",),
    "position_ids": ("positions",),
    "response_mask": ("loss_mask", "completion_mask", "action_mask"),
    "labels": (),
    "cu_seqlens": ("cu_seqlens_q", "cu_seq_lens", "cu_seq_lens_q"),
    "prompt_length": ("prompt_lengths",),
    "response_length": ("response_lengths",),
    "input_ids_length": (),
}
CANONICAL = {
    **{name: name for name in _SPELLINGS},
    **{other: name for name, others in _SPELLINGS.items() for other in others},
}
"""Every known spelling to verl's."""

_IDS = frozenset({"input_ids", "prompts", "responses"})
_STEP_IN_NAME = re.compile(r"(?:.*[_-])?(\d{1,7})")


@dataclass(frozen=True, slots=True, eq=False)
class TokenTensors:
    """One batch of a dump.

    Args:
        source: file, with the place inside it where one file holds several batches.
        step: training step; None where neither content nor name states it.
        tensors: by verl's name: one array [b, s] or [t], or b arrays of their own lengths.
        lines: 1-based line of each row, where the dump has a line a row.
        texts: prompt and response of each row, where the dump has them.
        finish_reasons: of each row, None where not recorded.
        trajectories: name and turn of each row, for dumps of several turns.
        problems: what could not be used, and why.
    """

    source: str
    step: int | None
    tensors: Mapping[str, Array | Sequence[Array]]
    lines: Sequence[int] | None = None
    texts: Sequence[tuple[str | None, str | None]] | None = None
    finish_reasons: Sequence[str | None] | None = None
    trajectories: Sequence[tuple[str, int]] | None = None
    problems: tuple[str, ...] = ()


def canonical(tensors: Mapping[str, Array | Sequence[Array]]) -> dict[str, Array | Sequence[Array]]:
    """Keep the tensors of a known name, under verl's; a name given twice keeps verl's own."""
    found: dict[str, Array | Sequence[Array]] = {}
    for name in sorted(tensors, key=lambda name: CANONICAL.get(name) != name):
        if name in CANONICAL:
            found.setdefault(CANONICAL[name], tensors[name])
    return found


def holds_ids(names: Sequence[str]) -> bool:
    """Tell whether some names are those of token ids."""
    return any(CANONICAL.get(name) in _IDS for name in names)


def step_of(path: Path) -> int | None:
    """Return the number that ends a file's name."""
    named = _STEP_IN_NAME.fullmatch(path.stem)
    return int(named[1]) if named else None
