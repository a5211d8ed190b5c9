"""What two runs of the same computation differ by, measured: the preferred source of a floor.

Runs to measure it on, the best first: the reference repeated; the reference again with embeddings
perturbed by one rounding; both runs against a referee, the same step in a finer dtype.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from align.layers.along import Direction, along
from align.layers.captured import CapturedStep
from align.layers.measure import difference
from dumps.store.tensor_records import TensorRecord

Key = tuple[str, str, int]
"""Phase, name and optimizer step."""
KindKey = tuple[str, str, Direction]

FACTOR = 4.0
"""How often as large as the observed noise an error may be: sketches are ±60 % at worst, both."""

_NUMBERED = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Share:
    """Root mean square cosine of errors with a direction, over layers, steps and runs."""

    rms: float
    num_samples: int


@dataclass(frozen=True, slots=True)
class Noise:
    """Observed noise.

    Args:
        sizes: relative error by address.
        shares: by kind of address: the same module of all layers.
        source: for people: which runs.
    """

    sizes: Mapping[Key, float]
    shares: Mapping[KindKey, Share]
    source: str
    num_samples: int


def kind_of(name: str) -> str:
    """Return a name without layer and expert numbers."""
    return _NUMBERED.sub("*", name)


def key_of(record: TensorRecord) -> Key:
    """Return the address of a record."""
    return record.phase, record.name, record.update


def observed(pairs: Iterable[tuple[CapturedStep, CapturedStep]], source: str) -> Noise:
    """Measure noise on pairs of steps that computed the same."""
    squares: dict[Key, list[float]] = defaultdict(list)
    shares: dict[KindKey, list[float]] = defaultdict(list)
    count = 0
    for reference, other in pairs:
        count += 1
        for own, its in _both(reference, other):
            relative = difference(own, its).relative
            if not math.isfinite(relative):
                continue
            squares[key_of(own)].append(relative**2)
            for direction in Direction:
                found = along(own, its, relative, direction)
                if found is not None:
                    shares[own.phase, kind_of(own.name), direction].append(found.share)
    return Noise(
        {key: _rms_of_squares(values) for key, values in squares.items()},
        {kind: share_of(values) for kind, values in shares.items()},
        source,
        count,
    )


def refereed(of_reference: Noise, of_candidate: Noise) -> Noise:
    """Join both runs' errors against a referee into the noise between them.

    At each address the smaller error counts, that of the side without a fault; the difference of
    two such sides is sqrt(2) times as large.
    """
    sizes = {
        key: math.sqrt(2) * min(size, of_candidate.sizes[key])
        for key, size in of_reference.sizes.items()
        if key in of_candidate.sizes
    }
    shares = {
        kind: min(share, of_candidate.shares[kind], key=lambda each: each.rms)
        for kind, share in of_reference.shares.items()
        if kind in of_candidate.shares
    }
    return Noise(sizes, shares, of_reference.source, of_reference.num_samples)


def share_of(cosines: Sequence[float]) -> Share:
    """Return the root mean square of some cosines."""
    return Share(_rms_of_squares([cosine**2 for cosine in cosines]), len(cosines))


def _both(
    reference: CapturedStep, other: CapturedStep
) -> Iterable[tuple[TensorRecord, TensorRecord]]:
    for phase, records in reference.records.items():
        theirs = other.of(phase)
        for address, own in records.items():
            its = theirs.get(address)
            if its is not None and its.digest == own.digest:
                yield own, its


def _rms_of_squares(squares: Sequence[float]) -> float:
    return math.sqrt(sum(squares) / len(squares))
