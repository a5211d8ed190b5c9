"""The first step both runs recorded: do they compute with the same tokens and weights there?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from align.layers.captured import CapturedStep, captured_steps
from align.layers.floor import SKETCH, unit_roundoff
from align.layers.measure import difference
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase, TensorRecord

POOLED = 32
"""Steps that errors pointing one way are pooled over; they are in memory together."""

POSITIONS = ("position_ids", 0)
"""Address of what the model is called with."""


class Start(Enum):
    """What the two runs have in common at that step."""

    NOT_RECORDED = "not recorded"
    OTHER_TOKENS = "other tokens"
    OTHER_POSITIONS = "other positions"
    OTHER_WEIGHTS = "other weights"
    OTHER_ROWS = "other rows in the first update"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Pair:
    """Both runs' records of one step.

    Args:
        reference, candidate: None where they were not recorded.
        weights: relative error and name of each parameter that differs, the largest first.
        num_weights: parameters that both runs recorded.
    """

    start: Start
    reference: CapturedStep | None = None
    candidate: CapturedStep | None = None
    weights: tuple[tuple[float, str], ...] = ()
    num_weights: int = 0

    @property
    def is_comparable(self) -> bool:
        """Whether layers can be compared at all."""
        return self.start is Start.SAME


def first_pair(reference: RunData, candidate: RunData) -> Pair:
    """Pair the first step that both runs recorded."""
    both = captured_steps(reference), captured_steps(candidate)
    common = sorted(both[0].keys() & both[1].keys())
    return paired(both[0][common[0]], both[1][common[0]]) if common else Pair(Start.NOT_RECORDED)


def pairs(reference: RunData, candidate: RunData) -> Iterator[Pair]:
    """Yield each step that both runs recorded, as long as they have the same inputs."""
    both = captured_steps(reference), captured_steps(candidate)
    for step in sorted(both[0].keys() & both[1].keys()):
        pair = paired(both[0][step], both[1][step])
        if not pair.is_comparable:
            return
        yield pair


def later_pairs(reference: RunData, candidate: RunData) -> list[Pair]:
    """Return steps after the first that have the same tokens and weights too, at most `POOLED`."""
    return list(islice(pairs(reference, candidate), 1, 1 + POOLED))


def paired(reference: CapturedStep, candidate: CapturedStep) -> Pair:
    """Say what two records of one step have in common."""
    own, other = (step.of(Phase.PARAMETER) for step in (reference, candidate))
    weights = _weights(own, other)
    start = Start.SAME
    inputs = [step.of(Phase.INPUT).get(POSITIONS) for step in (reference, candidate)]
    firsts = [_first(step.of(Phase.FORWARD)) for step in (reference, candidate)]
    if firsts[0] is None or firsts[1] is None:
        start = Start.NOT_RECORDED
    elif firsts[0].digest != firsts[1].digest and firsts[0].name == firsts[1].name:
        start = Start.OTHER_TOKENS
    elif inputs[0] and inputs[1] and difference(inputs[0], inputs[1]).relative > 0:
        start = Start.OTHER_POSITIONS
    elif weights:
        start = Start.OTHER_WEIGHTS
    return Pair(start, reference, candidate, weights, len(own.keys() & other.keys()))


def _first(records: Mapping[tuple[str, int], TensorRecord]) -> TensorRecord | None:
    return min(records.values(), key=lambda record: record.order, default=None)


def _weights(
    reference: Mapping[tuple[str, int], TensorRecord],
    candidate: Mapping[tuple[str, int], TensorRecord],
) -> tuple[tuple[float, str], ...]:
    """Return the errors beyond the parameters' own rounding."""
    found = []
    for address in reference.keys() & candidate.keys():
        own, other = reference[address], candidate[address]
        same = own.digest == other.digest
        error = difference(own, other).relative if same else float("inf")
        narrow = own.dtype != other.dtype
        # shards of one tensor are summed in another order
        if error > (unit_roundoff(own, other) if narrow else SKETCH):
            found.append((error, address[0]))
    return tuple(sorted(found, key=lambda each: (-each[0], each[1])))
