"""What a token is: a hash of the ids from the start of its own sequence up to itself.

Padding and its side, packing, batching and the order of rows change none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dumps.capture.sketch.hash import digest, splitmix64
from dumps.capture.sketch.sums import ROW_DIGEST_SALT, ROW_SALT, signs_and_one

_BASE = 0x2545F4914F6CDD1D  # odd, of the powers in the prefix hash


@dataclass(frozen=True)
class Tokens:
    """The attended tokens of one forward pass, n of them.

    Args:
        shape: batch and sequence length of the tensors that carry them.
        index: int64 [n], their places in the flattened [batch * length]; None for all places.
        keys: int64 [n].
        places: int64 [n], counted from 0 within each token's own sequence; None if unknown.
    """

    shape: tuple[int, int]
    index: Tensor | None
    keys: Tensor
    places: Tensor | None = None

    @cached_property
    def signs(self) -> Tensor:
        """float32 [SIDE + 1, n], the last row ones."""
        return signs_and_one(self.keys, ROW_SALT).T.contiguous()

    @cached_property
    def digest(self) -> Tensor:
        """int64, equal for equal sets of tokens."""
        return digest(self.keys, ROW_DIGEST_SALT)

    def fits(self, tensor: Tensor) -> bool:
        """Tell whether an activation has a row a token."""
        is_split = tensor.ndim >= 3 and tuple(tensor.shape[:2]) in (self.shape, self.shape[::-1])
        return is_split or (tensor.ndim >= 2 and tensor.shape[0] == self.shape[0] * self.shape[1])

    def rows(self, tensor: Tensor, *, sequence_first: bool = False) -> Tensor | None:
        """Return the tokens' rows [n, features] of an activation, None where it has no such rows.

        Args:
            tensor: [b, s, …], [s, b, …] or [b * s, …].
            sequence_first: [s, b, …] where s = b, and [s * b, …] for [b * s, …].
        """
        if not self.fits(tensor):
            return None
        batch, length = self.shape
        lead = tuple(tensor.shape[:2])
        flat = tensor
        if tensor.ndim >= 3 and lead in (self.shape, self.shape[::-1]):
            if lead != self.shape or (sequence_first and batch == length):
                flat = tensor.transpose(0, 1)
        elif sequence_first and batch > 1:
            flat = tensor.reshape(length, batch, -1).transpose(0, 1).flatten(0, 1)
        flat = flat.reshape(batch * length, -1)
        return flat if self.index is None else flat[self.index]


def tokens_of(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    bounds: Tensor | None = None,
) -> Tokens:
    """Key the tokens of a forward pass.

    A sequence starts where a row does, and where positions start again; only without positions do
    ``bounds`` say where packed sequences start, so that wrong bounds are seen in the activations.

    Args:
        input_ids: int64 [b, s].
        attention_mask: [b, s], 0 at padding; or Megatron's bool [b, 1, s, s], where padding does
            not see itself; any other shape is not looked at.
        position_ids: [b, s].
        bounds: int [sequences + 1] of cumulated lengths (cu_seqlens).
    """
    shape = (input_ids.shape[0], input_ids.shape[1])
    index = _attended(input_ids, attention_mask)
    ids = _picked(input_ids, index)
    starts = _row_starts(shape, index, ids.device)
    if position_ids is not None and position_ids.numel() == input_ids.numel():
        positions = _picked(position_ids.reshape(shape), index)
        starts = starts | _restarts(positions)
    elif bounds is not None:
        places = torch.arange(ids.numel(), device=ids.device) if index is None else index
        starts = starts | torch.isin(places, bounds[:-1].to(places))
    return Tokens(shape, index, prefix_keys(ids, starts), places_of(starts))


def kept(tokens: Tokens, keep: int | Tensor) -> Tokens | None:
    """Return the tokens left by transformers' ``logits_to_keep``, None where it keeps all.

    Args:
        keep: the last so many positions of every row, or the positions themselves.
    """
    batch, length = tokens.shape
    if isinstance(keep, int):
        if not 0 < keep < length:
            return None
        columns = torch.arange(length - keep, length, device=tokens.keys.device)
    else:
        columns = keep.to(tokens.keys.device) % length
    places = torch.arange(batch, device=columns.device)[:, None] * length + columns
    number = torch.full((batch * length,), -1, dtype=torch.int64, device=columns.device)
    own = tokens.index if tokens.index is not None else torch.arange(batch * length)
    number[own.to(columns.device)] = torch.arange(len(own), device=columns.device)
    numbers = number[places.flatten()]
    index = (numbers >= 0).nonzero().squeeze(-1)
    kept_ones = numbers[index]
    return Tokens(
        (batch, len(columns)),
        None if len(index) == len(numbers) else index,
        tokens.keys[kept_ones],
        None if tokens.places is None else tokens.places[kept_ones],
    )


def part(tokens: Tokens, rank: int, ranks: int) -> Tokens | None:
    """Return a rank's chunk of every row (sequence parallelism), None where there is none."""
    length, rest = divmod(tokens.shape[1], ranks)
    if ranks == 1 or rest:
        return None
    return kept(tokens, torch.arange(rank * length, (rank + 1) * length))


def prefix_keys(ids: Tensor, starts: Tensor) -> Tensor:
    """Hash the prefix of each token within its sequence.

    Args:
        ids: integers [n], sequences end to end.
        starts: bool [n], the first true.

    Returns:
        int64 [n]: a polynomial of hashed ids modulo 2**64, hashed with the place in the sequence.
    """
    place, ids = places_of(starts), ids.to(torch.int64)
    start = torch.arange(len(ids), device=ids.device) - place
    powers = torch.full_like(ids, _BASE).cumprod(0)
    terms = splitmix64(ids) * powers[place]
    sums = terms.cumsum(0)
    prefix = sums - (sums - terms)[start]
    return splitmix64(prefix ^ splitmix64(place))


def places_of(starts: Tensor) -> Tensor:
    """Return int64 [n], how far each token is from the last start before it."""
    number = torch.arange(len(starts), device=starts.device)
    return number - torch.where(starts, number, 0).cummax(0).values


def num_sequences(tokens: Tokens, position_ids: Tensor) -> int:
    """Return how many sequences the positions tell apart."""
    positions = _picked(position_ids.reshape(tokens.shape), tokens.index)
    rows = _row_starts(tokens.shape, tokens.index, positions.device)
    return int((rows | _restarts(positions)).sum())


def _attended(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
    if attention_mask is None:
        return None
    batch, length = input_ids.shape
    if attention_mask.shape == (batch, 1, length, length) and attention_mask.dtype == torch.bool:
        attention_mask = ~attention_mask[:, 0].diagonal(dim1=1, dim2=2)
    if attention_mask.shape != input_ids.shape:
        return None
    attended = attention_mask.reshape(-1) != 0
    index = attended.nonzero().squeeze(-1)  # waits for the device, once a forward pass
    return None if len(index) == attended.numel() else index


def _picked(tensor: Tensor, index: Tensor | None) -> Tensor:
    flat = tensor.reshape(-1)
    return flat if index is None else flat[index]


def _row_starts(shape: tuple[int, int], index: Tensor | None, device: torch.device) -> Tensor:
    places = torch.arange(shape[0] * shape[1], device=device) if index is None else index
    row = places // shape[1]
    return torch.cat([torch.ones_like(row[:1], dtype=torch.bool), row[1:] != row[:-1]])


def _restarts(positions: Tensor) -> Tensor:
    first = torch.ones_like(positions[:1], dtype=torch.bool)
    return torch.cat([first, positions[1:] < positions[:-1]]) | (positions == 0)
