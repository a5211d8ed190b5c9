"""The tokens of one forward pass, from what the model is called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dumps.capture.sketch.local import SharedSequences
from dumps.capture.sketch.token_keys import Tokens, kept, tokens_of

_BOUNDS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens")


def tokens_of_pass(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], shared: SharedSequences | None = None
) -> list[Tokens]:
    """Key the tokens a model is called with.

    Args:
        args, kwargs: of the call; the ids are input_ids or the first one, [b, s] or [t].
        shared: how ranks share the sequences, whose ids are then gathered.

    Returns:
        the tokens, and those transformers' logits_to_keep leaves; none without ids.
    """
    ids = kwargs.get("input_ids", args[0] if args else None)
    if not isinstance(ids, Tensor) or ids.ndim not in (1, 2) or ids.is_floating_point():
        return []
    ids = ids[None] if ids.ndim == 1 else ids
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    bounds, padded = bounds_of(kwargs), _padded_bounds(kwargs)
    if shared is not None:
        places = shared.places(ids.shape[1], bounds if padded is None else padded)
        ids = _together(shared.gather(ids), places)
        if positions is not None and positions.numel() != ids.numel():
            positions = _together(shared.gather(positions), places)
    if padded is not None and bounds is not None:
        mask = _within(bounds, padded, ids)
    tokens = tokens_of(ids, mask, positions, bounds if padded is None else padded)
    if shared is not None:
        own = kept(tokens, places[shared.rank])
        return [] if own is None else [own]
    fewer = kept(tokens, kwargs.get("logits_to_keep", 0))
    return [tokens] if fewer is None else [tokens, fewer]


def bounds_of(kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the cumulated lengths of packed sequences, int [sequences + 1]."""
    packed = kwargs.get("packed_seq_params")
    found = [kwargs.get(name, getattr(packed, name, None)) for name in _BOUNDS]
    return next((bounds for bounds in found if isinstance(bounds, Tensor)), None)


def _padded_bounds(kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the bounds of packed sequences that are padded, each to a length ranks can share."""
    padded = getattr(kwargs.get("packed_seq_params"), "cu_seqlens_q_padded", None)
    return padded if isinstance(padded, Tensor) else None


def _together(parts: Sequence[Tensor], places: Sequence[Tensor]) -> Tensor:
    """Return whole rows of the ranks' parts [b, s]."""
    parts = [part.reshape(-1, len(place)) for part, place in zip(parts, places, strict=True)]
    order = torch.cat(list(places)).argsort().to(parts[0].device)
    return torch.cat(parts, 1)[:, order]


def _within(bounds: Tensor, padded: Tensor, ids: Tensor) -> Tensor:
    """Return bool like the ids [1, t]: whether a place is in a sequence and not in its padding."""
    place = torch.arange(ids.shape[1], device=ids.device)
    number = torch.searchsorted(padded[1:].to(place), place, right=True).clamp(max=len(bounds) - 2)
    lengths = (bounds[1:] - bounds[:-1]).to(place)
    return (place - padded.to(place)[number] < lengths[number])[None]
