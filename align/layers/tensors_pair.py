"""Whole tensors of both runs, row by row: rows paired by token, columns by feature."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from align.layers.exact import Values
from dumps.store.run_data import RunData
from dumps.store.tensor_shards import TensorPart

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64 = npt.NDArray[np.int64]

Address = tuple[str, str, int]
"""Module, phase, optimizer step."""


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """One run's tensor of an address, its rows in the order of their tokens' keys.

    Args:
        tokens: int64 [5, n]: key, number among the rows of that key, place in the token's own
            sequence (-1: unknown), 1 where another sequence lies before it in its row, and a number
            of its sequence.
        values: [n, features].
    """

    tokens: Int64
    values: Values
    first_feature: int


@dataclass(frozen=True, slots=True, eq=False)
class WholePair:
    """Both runs' tensor of an address over the tokens both have.

    Args:
        places, packed: of the candidate's rows, see `Whole`.
        alone: rows on one side only, which are left out.
    """

    address: Address
    reference: Values
    candidate: Values
    places: Int64
    packed: Int64
    first_feature: int
    alone: int


def whole_pairs(reference: RunData, candidate: RunData, step: int) -> dict[Address, WholePair]:
    """Pair what both runs kept whole of a step, in the order of computation."""
    own, other = (_parts(run, step) for run in (reference, candidate))
    found = {}
    for address in own:
        both = _whole(own[address]), _whole(other.get(address, ()))
        if both[0] is not None and both[1] is not None:
            pair = _paired(address, both[0], both[1])
            if pair is not None:
                found[address] = pair
    return found


def whole_tensors(run: RunData, step: int) -> dict[Address, Whole]:
    """Return what one run kept whole of a step, in the order of computation."""
    joined = {address: _whole(parts) for address, parts in _parts(run, step).items()}
    return {address: whole for address, whole in joined.items() if whole is not None}


def _parts(run: RunData, step: int) -> dict[Address, list[TensorPart]]:
    found: dict[Address, list[TensorPart]] = defaultdict(list)
    for file in sorted(run.tensor_files, key=lambda file: file.rank):
        if file.step == step:
            for part in file.parts:
                found[part.name, part.phase, part.update].append(part)
    return found


def _whole(parts: Iterable[TensorPart]) -> Whole | None:
    """Join the parts of an address; None where shards cover other tokens, or there are none."""
    shards: dict[int, list[TensorPart]] = defaultdict(list)
    for part in parts:
        shards[part.first_feature].append(part)
    joined = [_joined(shards[first]) for first in sorted(shards)]
    if not joined or any(not np.array_equal(t, joined[0][0]) for t, _ in joined):
        return None
    firsts = sorted(shards)
    ends = [first + rows.shape[1] for first, (_, rows) in zip(firsts, joined, strict=True)]
    if firsts[1:] != ends[:-1]:
        return None
    dtype = next(iter(shards.values()))[0].dtype
    values = np.concatenate([values for _, values in joined], axis=1)
    return Whole(joined[0][0], Values(dtype, values), min(shards))


def _joined(parts: Sequence[TensorPart]) -> tuple[Int64, npt.NDArray[np.generic]]:
    """Return the rows of several passes or ranks, sorted by key."""
    keys = np.concatenate([part.tokens.keys for part in parts])
    places = np.concatenate([part.tokens.places for part in parts])
    packed = np.concatenate([_is_packed(part) for part in parts])
    sequences = _sequences(parts)
    values = np.concatenate([np.asarray(part.values()) for part in parts])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.concatenate([[True], keys[1:] != keys[:-1]]) if len(keys) else keys.astype(bool)
    number = np.arange(len(keys))
    number -= np.maximum.accumulate(np.where(starts, number, 0))
    tokens = [keys, number, places[order], packed[order], sequences[order]]
    return np.stack(tokens), values[order]


def _sequences(parts: Sequence[TensorPart]) -> Int64:
    """Number the sequences that tokens are in, over all passes."""
    starts = [
        (part.tokens.places == 0) | np.concatenate([[True], np.diff(part.tokens.rows) != 0])
        for part in parts
    ]
    return np.asarray(np.cumsum(np.concatenate(starts)), dtype=np.int64)


def _is_packed(part: TensorPart) -> Int64:
    """Tell which tokens have another sequence before their own in the same row of the batch."""
    places, rows = part.tokens.places, part.tokens.rows
    starts = np.cumsum(places == 0)
    new_row = np.concatenate([[True], rows[1:] != rows[:-1]])
    first = np.maximum.accumulate(np.where(new_row, starts, 0))
    return np.asarray((starts > first) & (places >= 0), dtype=np.int64)


def _paired(address: Address, own: Whole, other: Whole) -> WholePair | None:
    same = own.values.raw.shape[1:] == other.values.raw.shape[1:]
    if not same or own.first_feature != other.first_feature:
        return None
    known = {tuple(row): i for i, row in enumerate(other.tokens[:2].T.tolist())}
    rows = [(i, known.get(tuple(row))) for i, row in enumerate(own.tokens[:2].T.tolist())]
    both = [(i, j) for i, j in rows if j is not None]
    if not both:
        return None
    ours, theirs = (np.array(column) for column in zip(*both, strict=True))
    return WholePair(
        address,
        Values(own.values.dtype, own.values.raw[ours]),
        Values(other.values.dtype, other.values.raw[theirs]),
        other.tokens[2][theirs],
        other.tokens[3][theirs],
        own.first_feature,
        len(own.tokens[0]) + len(other.tokens[0]) - 2 * len(both),
    )
