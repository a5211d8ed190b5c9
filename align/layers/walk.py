"""Go through the addresses of both runs in the order of computation, to the first departure.

An address departs where its error is larger than its floor and than what its inputs' error
explains, or where the error, however small, points one way further than noise does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from align.core.threshold import Threshold
from align.layers.captured import Address
from align.layers.floor import GROWTH, unit_roundoff
from align.layers.measure import Difference, difference
from align.layers.noise import FACTOR, Noise, key_of
from align.layers.systematic import Systematic, judged_systematic
from dumps.store.tensor_records import TensorRecord

FloorOf = Callable[[TensorRecord, TensorRecord], Threshold]
Records = Mapping[Address, TensorRecord]


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """One address held by both runs over the same tokens and features.

    Args:
        limit: what rounding, or the error of what it is computed from, explains.
        before: largest error of the addresses before it.
        systematic: a factor or an offset that noise does not explain.
    """

    reference: TensorRecord
    candidate: TensorRecord
    difference: Difference
    limit: Threshold
    before: float
    systematic: Systematic | None = None

    @property
    def is_large(self) -> bool:
        """Whether the error is larger than what explains it."""
        return self.difference.relative > self.limit.value

    @property
    def departs(self) -> bool:
        """Whether the error is too large, or points one way."""
        return self.is_large or self.systematic is not None


@dataclass(frozen=True, eq=False)
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

    @cached_property
    def departure(self) -> Compared | None:
        """The first address whose error neither noise nor its inputs' error explains."""
        return next((compared for compared in self.compared if compared.departs), None)

    @property
    def worst(self) -> float:
        """The largest error."""
        return max((compared.difference.relative for compared in self.compared), default=0.0)


def walk(
    reference: Records,
    candidate: Records,
    floor_of: FloorOf,
    *,
    before: float = 0.0,
    is_chain: bool = True,
    noise: Noise | None = None,
    further: Sequence[tuple[Records, Records]] = (),
) -> Walk:
    """Compare the addresses that both runs have.

    An error is explained up to its floor, as two devices round differently even where each repeats
    itself. Beyond that, it may be `GROWTH` times the largest error before it; or, where noise was
    observed, `FACTOR` times the noise here, times how much larger than noise errors before it are.

    Args:
        before: largest error of what the first address is computed from.
        is_chain: each address is computed from those before it; else all from the same, and
            factors are not judged.
        noise: observed between two runs of the same computation.
        further: the same phase of further steps, for factors and offsets.
    """
    compared, reference_only, other_tokens = [], [], []
    floors = _Floors(floor_of, noise, before)
    for address, own in sorted(reference.items(), key=lambda item: item[1].order):
        other = candidate.get(address)
        if other is None:
            reference_only.append(own)
        elif own.digest != other.digest:
            other_tokens.append(own)
        else:
            limit, found = floors.limit(own, other), difference(own, other)
            compared.append(Compared(own, other, found, limit, floors.before))
            if is_chain:
                floors.passed(own, found.relative)
    candidate_only = [record for address, record in candidate.items() if address not in reference]
    if is_chain:
        compared = _with_systematic(compared, noise, further)
    return Walk(compared, reference_only, candidate_only, other_tokens)


class _Floors:
    """The limit of the next address, from those before it."""

    def __init__(self, floor_of: FloorOf, noise: Noise | None, before: float) -> None:
        self._floor_of, self._noise, self.before = floor_of, noise, before
        self._ratio = 1.0

    def limit(self, own: TensorRecord, other: TensorRecord) -> Threshold:
        """Return what explains an error here."""
        floor, seen = self._floor_of(own, other), self._seen(own)
        if self._noise is None or seen is None:
            inherited = GROWTH.value * self.before
            return floor if floor.value >= inherited else Threshold(inherited, _INHERITED)
        value = FACTOR * self._ratio * seen
        if value <= floor.value:
            return floor
        times = f" times {self._ratio:.2g}, as before it" if self._ratio > 1 else ""
        source = f"{FACTOR:g} times the noise here, {seen:.2g}{times}; from {self._noise.source}"
        return Threshold(value, source, self._noise.num_samples)

    def passed(self, own: TensorRecord, relative: float) -> None:
        """Take note of an address's error."""
        self.before = max(self.before, relative)
        seen = self._seen(own)
        if seen:
            self._ratio = max(self._ratio, relative / max(seen, unit_roundoff(own)))

    def _seen(self, own: TensorRecord) -> float | None:
        return None if self._noise is None else self._noise.sizes.get(key_of(own))


def _with_systematic(
    compared: Sequence[Compared],
    noise: Noise | None,
    further: Sequence[tuple[Records, Records]],
) -> list[Compared]:
    errors = defaultdict(list)
    for each in compared:
        errors[key_of(each.reference)].append((each.reference, each.candidate, each.difference))
    for reference, candidate in further:
        for address, own in reference.items():
            other = candidate.get(address)
            if other is not None and other.digest == own.digest and key_of(own) in errors:
                errors[key_of(own)].append((own, other, difference(own, other)))
    found = judged_systematic(errors, noise)
    return [replace(each, systematic=found.get(key_of(each.reference))) for each in compared]


_INHERITED = f"{GROWTH.value:g} times the largest error before it: {GROWTH.source}"
