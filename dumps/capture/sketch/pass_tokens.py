"""The tokens of one forward pass, from what the model is called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dumps.capture.sketch.local import SharedSequences
from dumps.capture.sketch.token_keys import Tokens, kept, places_of, prefix_keys, tokens_of

_BOUNDS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens")


def tokens_of_pass(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], shared: SharedSequences | None = None
) -> list[Tokens]:
    """Key the tokens a model is called with.

    Args:
        args, kwargs: of the call; the ids are input_ids or the first one, [b, s] or [t]. Where a
            model is called with padding that looks like tokens, or as later pipeline stages are
            with no such ids, sequences are what they are made of: [b, …], nested.
        shared: how ranks share the sequences, whose ids are then gathered.

    Returns:
        the tokens, and those transformers' logits_to_keep leaves; none without ids.
    """
    ids = kwargs.get("input_ids", args[0] if args else None)
    whole = kwargs.get("sequences")
    if isinstance(whole, Tensor) and whole.is_nested:
        return [_laid_out(whole, ids, _padded_bounds(kwargs), shared)]
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


def _laid_out(
    whole: Any, ids: Tensor, padded: Tensor | None, shared: SharedSequences | None
) -> Tokens:
    """Key whole sequences where the padded form of them has them.

    Args:
        whole: nested [b, …].
        ids: what the model is called with: [b, s], or packed [1, t], or the sequences themselves.
        padded: cumulated lengths of packed sequences with their padding; None for [b, s].
    """
    values, ends = whole.values(), whole.offsets()
    ranks = 1 if shared is None else shared.ranks
    if padded is None:
        count, length = len(ends) - 1, ids.shape[1] * ranks
        starts = torch.arange(count, device=values.device) * length
    elif ids.is_nested:
        count, length, starts = 1, int(padded[-1]), padded[:-1]  # waits for the device
    else:
        count, length, starts = 1, ids.shape[-1] * ranks, padded[:-1]
    moved = (starts.to(ends) - ends[:-1]).repeat_interleave(ends.diff(), output_size=len(values))
    place = torch.arange(len(values), device=values.device)
    begins = torch.isin(place, ends[:-1])
    tokens = Tokens((count, length), place + moved, prefix_keys(values, begins), places_of(begins))
    if shared is None:
        return tokens
    own = kept(tokens, shared.places(length // ranks, padded)[shared.rank])
    return tokens if own is None else own


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
