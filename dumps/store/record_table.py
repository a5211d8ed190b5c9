"""The records of one sketch file as columns, for work on many of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dumps.store.tensor_records import SketchFile, TensorRecord

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
    Int64 = npt.NDArray[np.int64]

Key = tuple[str, str, int]
"""Phase, name and optimizer step within the training step."""

_WHOLE = 1 << 64


@dataclass(frozen=True, slots=True, eq=False)
class RecordTable:
    """One file, or all files of a step added up; a record a row.

    Args:
        keys: n of them, each once.
        order: int64 [n], place in the order of computation.
        dtypes, shapes: as of `TensorRecord`.
        num_elements: int64 [n].
        sketch: [n, 16, 16], float32 as in a file, float64 where ranks were added up.
        moments: likewise [n, 4]: L2, minimum, maximum, total.
        counts: int64 [n, 6]: zeros, NaN, infinities, negative infinities, elements that bfloat16
            holds, digest modulo 2**64.
    """

    source: str
    step: int
    rank: int
    keys: tuple[Key, ...]
    order: Int64
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    num_elements: Int64
    sketch: Floats
    moments: Floats
    counts: Int64
    unaligned: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    facts: Mapping[str, int] | None = None

    def record(self, row: int) -> TensorRecord:
        """Return one row by itself."""
        phase, name, update = self.keys[row]
        l2, minimum, maximum, total = self.moments[row].tolist()
        zeros, nan, positive_inf, negative_inf, bfloat16, digest = self.counts[row].tolist()
        return TensorRecord(
            name,
            phase,
            update,
            int(self.order[row]),
            self.dtypes[row],
            self.shapes[row],
            int(self.num_elements[row]),
            self.sketch[row].astype(np.float64),
            l2,
            total,
            minimum,
            maximum,
            zeros,
            nan,
            positive_inf,
            negative_inf,
            bfloat16,
            digest % _WHOLE,
        )

    def as_file(self) -> SketchFile:
        """Return the rows as records."""
        return SketchFile(
            source=self.source,
            step=self.step,
            rank=self.rank,
            records=tuple(self.record(row) for row in range(len(self.keys))),
            unaligned=self.unaligned,
            problems=self.problems,
            facts=self.facts or {},
        )


def added_up(tables: Sequence[RecordTable]) -> RecordTable:
    """Add up what the ranks recorded of one step; dtype, shape and order are the first rank's."""
    ranks = sorted(tables, key=lambda table: table.rank)
    if len(ranks) == 1:
        return ranks[0]
    places: dict[Key, int] = {}
    firsts: list[tuple[RecordTable, int]] = []
    for table in ranks:
        for row, key in enumerate(table.keys):
            if key not in places:
                places[key] = len(firsts)
                firsts.append((table, row))
    moments = np.zeros((len(firsts), 4))
    moments[:, 1], moments[:, 2] = np.inf, -np.inf
    sketch = np.zeros((len(firsts), *ranks[0].sketch.shape[1:]))
    counts = np.zeros((len(firsts), 6), dtype=np.int64)
    num_elements = np.zeros(len(firsts), dtype=np.int64)
    for table in ranks:
        rows = np.array([places[key] for key in table.keys], dtype=np.int64)
        sketch[rows] += table.sketch
        moments[rows, 0] = np.hypot(moments[rows, 0], table.moments[:, 0])
        moments[rows, 1] = np.minimum(moments[rows, 1], table.moments[:, 1])
        moments[rows, 2] = np.maximum(moments[rows, 2], table.moments[:, 2])
        moments[rows, 3] += table.moments[:, 3]
        counts[rows] += table.counts  # digests wrap
        num_elements[rows] += table.num_elements
    return RecordTable(
        ranks[0].source,
        ranks[0].step,
        ranks[0].rank,
        tuple(places),
        np.array([table.order[row] for table, row in firsts], dtype=np.int64),
        tuple(table.dtypes[row] for table, row in firsts),
        tuple(table.shapes[row] for table, row in firsts),
        num_elements,
        sketch,
        moments,
        counts,
        _together(table.unaligned for table in ranks),
        _together(table.problems for table in ranks),
    )


def _together(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for each in names for name in each}))
