"""A run's sketches by step: the parts that ranks recorded, added up."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from dumps.store.run_data import RunData
from dumps.store.tensor_records import ENGINE_FOLDER, SketchFile, TensorRecord

Address = tuple[str, int]
"""Canonical name, and optimizer step within the training step."""

_WHOLE = 1 << 64


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Everything recorded of one training step.

    Args:
        source: one of its files, for evidence.
        records: by phase and address, in the order of computation.
        unaligned: modules whose output has no row a token.
        facts: further numbers of the step.
    """

    step: int
    source: str
    records: Mapping[str, Mapping[Address, TensorRecord]]
    unaligned: tuple[str, ...]
    facts: Mapping[str, int]

    def of(self, phase: str) -> Mapping[Address, TensorRecord]:
        """Return the records of one phase; empty where there are none."""
        return self.records.get(phase, {})


class CapturedSteps(Mapping[int, CapturedStep]):
    """A run's steps in their order, each read and merged when it is asked for."""

    def __init__(self, data: RunData) -> None:
        self._data = data

    def __getitem__(self, step: int) -> CapturedStep:
        if step not in self:
            raise KeyError(step)
        files = self._data.sketches_of(step)
        return merged(files) if files else CapturedStep(step, "", {}, (), {})

    def __contains__(self, step: object) -> bool:
        return step in self._data.sketch_files

    def __iter__(self) -> Iterator[int]:
        return iter(self._data.sketch_files)

    def __len__(self) -> int:
        return len(self._data.sketch_files)


def captured_steps(data: RunData) -> CapturedSteps:
    """Return a run's sketches by step."""
    return CapturedSteps(data)


def merged(files: Iterable[SketchFile]) -> CapturedStep:
    """Add up what the ranks recorded of one step."""
    ranks = sorted(files, key=lambda f: (f"/{ENGINE_FOLDER}" in f.source, f.rank))
    records: dict[str, dict[Address, TensorRecord]] = defaultdict(dict)
    facts: dict[str, int] = defaultdict(int)
    for file in ranks:
        for record in sorted(file.records, key=lambda record: record.order):
            phase, address = records[record.phase], (record.name, record.update)
            known = phase.get(address)
            phase[address] = record if known is None else added(known, record)
        for name, value in file.facts.items():
            facts[name] += value
    return CapturedStep(
        ranks[0].step,
        ranks[0].source,
        records,
        tuple(sorted({name for file in ranks for name in file.unaligned})),
        facts,
    )


def added(one: TensorRecord, other: TensorRecord) -> TensorRecord:
    """Add two parts of one address."""
    return replace(
        one,
        num_elements=one.num_elements + other.num_elements,
        sketch=one.sketch + other.sketch,
        l2=math.hypot(one.l2, other.l2),
        total=one.total + other.total,
        minimum=min(one.minimum, other.minimum),
        maximum=max(one.maximum, other.maximum),
        zeros=one.zeros + other.zeros,
        nan=one.nan + other.nan,
        positive_inf=one.positive_inf + other.positive_inf,
        negative_inf=one.negative_inf + other.negative_inf,
        bfloat16=one.bfloat16 + other.bfloat16,
        digest=(one.digest + other.digest) % _WHOLE,
    )
