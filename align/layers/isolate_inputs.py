"""What a module takes beside its hidden states, made from where its tokens stand.

Attention and whole layers of transformers' models take a mask, positions and rotary embeddings.
All of them follow from the places of tokens within their own sequences.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64 = npt.NDArray[np.int64]

Beside = Callable[[Tensor], Mapping[str, Any]]
"""From hidden states [1, t, h] of one whole sequence to the other arguments."""

TAKES_INPUT = ("q_proj", "q_a_proj", "qkv_proj")
"""Modules within attention whose input is attention's own, which is called by keyword."""

_HIDDEN = "hidden_states"
_MADE = frozenset({"attention_mask", "position_ids", "position_embeddings"})


def takes_one(module: nn.Module) -> bool:
    """Tell whether a module's forward takes one input and nothing else."""
    return len(_parameters(module)) == 1


def inputs_beside(module: nn.Module, model: nn.Module) -> Beside | None:
    """Return what makes a module's further arguments; None where they are not known.

    Args:
        model: the whole one, whose rotary embedding is used.
    """
    named = _parameters(module)
    needed = {n for n, p in named.items() if p.default is inspect.Parameter.empty}
    rotary = next((m for n, m in model.named_modules() if n.endswith("rotary_emb")), None)
    if not needed <= {_HIDDEN, *_MADE} or _HIDDEN not in named:
        return None
    if "position_embeddings" in named and rotary is None:
        return None
    if any(getattr(part, "sliding_window", None) for part in module.modules()):
        return None

    def beside(hidden: Tensor) -> Mapping[str, Any]:
        places = torch.arange(hidden.shape[1], device=hidden.device)[None]
        made: dict[str, Any] = {"attention_mask": _causal(hidden), "position_ids": places}
        if rotary is not None:
            made["position_embeddings"] = rotary(hidden, places)
        return {name: value for name, value in made.items() if name in named}

    return beside


def whole_sequences(tokens: Int64) -> list[Int64] | None:
    """Return the rows of each sequence in the order of its tokens; None where some are missing.

    Args:
        tokens: int64 [5, n] of `align.layers.tensors_pair.Whole`.
    """
    places, number = tokens[2], tokens[4]
    order = np.lexsort((places, number))
    bounds = np.flatnonzero(np.diff(number[order])) + 1
    found = np.split(order, bounds)
    whole = all(np.array_equal(places[rows], np.arange(len(rows))) for rows in found)
    return found if whole else None


def _parameters(module: nn.Module) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(module.forward).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in parameters.items() if p.kind not in variadic}


def _causal(hidden: Tensor) -> Tensor:
    """Return what is added to scores, [1, 1, t, t]: 0, or the least number above the diagonal."""
    length = hidden.shape[1]
    least = torch.finfo(hidden.dtype).min
    mask = torch.full((length, length), least, dtype=hidden.dtype, device=hidden.device)
    return mask.triu(1)[None, None]
