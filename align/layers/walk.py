"""Go through the addresses of both runs in the order of computation, to the first departure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from align.core.threshold import Threshold
from align.layers.captured import Address
from align.layers.floor import GROWTH
from align.layers.measure import Difference, difference
from dumps.store.tensor_records import TensorRecord

FloorOf = Callable[[TensorRecord, TensorRecord], Threshold]


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """One address held by both runs over the same tokens and features.

    Args:
        limit: what rounding, or the error of what it is computed from, explains.
        before: largest error of the addresses before it.
    """

    reference: TensorRecord
    candidate: TensorRecord
    difference: Difference
    limit: Threshold
    before: float

    @property
    def departs(self) -> bool:
        """Whether the error is larger than what explains it."""
        return self.difference.relative > self.limit.value


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """The addresses of one phase, in the reference's order of computation.

    Args:
        compared: all that can be compared, before and after the first departure.
        reference_only, candidate_only: recorded on one side alone.
        other_tokens: recorded over other tokens or features on the two sides.
    """

    compared: Sequence[Compared]
    reference_only: Sequence[TensorRecord]
    candidate_only: Sequence[TensorRecord]
    other_tokens: Sequence[TensorRecord]

    @property
    def departure(self) -> Compared | None:
        """The first address whose error neither rounding nor its inputs' error explains."""
        return next((compared for compared in self.compared if compared.departs), None)

    @property
    def worst(self) -> float:
        """The largest error."""
        return max((compared.difference.relative for compared in self.compared), default=0.0)


def walk(
    reference: Mapping[Address, TensorRecord],
    candidate: Mapping[Address, TensorRecord],
    floor_of: FloorOf,
    *,
    before: float = 0.0,
    is_chain: bool = True,
) -> Walk:
    """Compare the addresses that both runs have.

    An error is explained up to its floor, and up to `GROWTH` times the largest error before it.

    Args:
        before: largest error of what the first address is computed from.
        is_chain: each address is computed from those before it; else all from the same.
    """
    compared, reference_only, other_tokens = [], [], []
    for address, own in sorted(reference.items(), key=lambda item: item[1].order):
        other = candidate.get(address)
        if other is None:
            reference_only.append(own)
        elif own.digest != other.digest:
            other_tokens.append(own)
        else:
            floor, inherited = floor_of(own, other), GROWTH.value * before
            limit = floor if floor.value >= inherited else Threshold(inherited, _INHERITED)
            found = difference(own, other)
            compared.append(Compared(own, other, found, limit, before))
            before = max(before, found.relative) if is_chain else before
    candidate_only = [record for address, record in candidate.items() if address not in reference]
    return Walk(compared, reference_only, candidate_only, other_tokens)


_INHERITED = f"{GROWTH.value:g} times the largest error before it: {GROWTH.source}"
