"""Metric lines as rows of numbers, gathered by the keys they print, and made into series.

A training log prints the same keys in the same order step after step. Such a *layout* is learned
once; every further line is then a split, a comparison of prefixes and a conversion in bulk.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any

from align.core.metric import MetricSeries, Skipped
from align.frameworks.vocabulary import metric_name

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MAX_SKIPPED = 100
_NUMPY = re.compile(rb"np\.\w+\(")
_TENSOR = re.compile(rb"tensor\(([^(),]*)[^()]*\)")
_PAIR = re.compile(
    rb"\s*(?P<key>[^\n]{1,200}?)\s*:\s*"
    rb"(?P<number>[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)\b))"
    rb"(?![\d./:@_])"  # else the number is part of a key, as in "val:3/foo:0.5"
)

Resolve = Callable[[Sequence[bytes], int], Sequence[float]]
"""From the numbers of lines of so many keys each to the resolution of each number."""


@dataclass(frozen=True, slots=True)
class PrintedLines:
    """Metric lines in the order of the file, as columns of equal length.

    Args:
        steps: step of each line.
        numbers: its 1-based number in the file.
        pairs: what follows its anchor, without escape sequences and wrapped numbers.
    """

    steps: list[int]
    numbers: list[int]
    pairs: list[bytes]


@dataclass(slots=True, eq=False)
class Layout:
    """Lines that print the same keys in the same order; values are row-major."""

    keys: tuple[str, ...]
    starts: list[bytes]  # b"actor/lr:", as the lines have it
    widths: list[int]  # of the starts
    order: array[int] = field(default_factory=lambda: array("i"))  # position among all lines
    steps: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("i"))
    values: array[float] = field(default_factory=lambda: array("d"))
    resolution: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)


class MetricRows:
    """The metric lines of one file.

    Args:
        separator: between pairs, such as b" - ".
        resolve: gives the resolution of the numbers that one line prints.
    """

    def __init__(self, separator: bytes, resolve: Resolve) -> None:
        self._separator, self._resolve = separator, resolve
        self._layouts: dict[tuple[bytes, ...], Layout] = {}
        self._known: dict[tuple[int, bytes], list[Layout]] = {}  # by number of parts and first key
        self._num_before = 0  # lines of earlier blocks
        self.num_rows = 0
        self.num_skipped = 0
        self.skipped: list[Skipped] = []  # the first hundred

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Distinct layouts, in order of appearance."""
        return tuple(self._layouts.values())

    def add(self, lines: PrintedLines) -> None:
        """Add lines, together those that look alike."""
        alike: dict[tuple[int, bytes], list[int]] = {}
        for row, pairs in enumerate(lines.pairs):
            shape = pairs.count(self._separator), pairs[: pairs.find(b":")]
            if shape in alike:
                alike[shape].append(row)
            else:
                alike[shape] = [row]
        for shape, rows in alike.items():
            known = self._known.setdefault(shape, [])
            if not known:
                self._add_unfamiliar(lines, rows.pop(0), known)
            if rows and not self._add_together(lines, rows, known):
                for row in rows:
                    if not self._add_together(lines, [row], known):
                        self._add_unfamiliar(lines, row, known)
        self._num_before += len(lines.pairs)

    def _skip(self, line: int, why: str) -> None:
        self.num_skipped += 1
        if len(self.skipped) < _MAX_SKIPPED:
            self.skipped.append(Skipped(line, why))

    def _add_together(self, lines: PrintedLines, rows: list[int], known: list[Layout]) -> bool:
        """Add rows of one layout in bulk; add none and return False where they are not."""
        parts = self._separator.join([lines.pairs[row] for row in rows]).split(self._separator)
        for layout in known:
            if all(map(bytes.startswith, parts, cycle(layout.starts))):
                numbers = [part[n:] for part, n in zip(parts, cycle(layout.widths), strict=False)]
                try:
                    values = list(map(float, numbers))
                except ValueError:  # text is glued to a value
                    return False
                self._append(layout, lines, rows, numbers, values)
                return True
        return False

    def _add_unfamiliar(self, lines: PrintedLines, row: int, known: list[Layout]) -> None:
        pairs: list[re.Match[bytes]] = []
        parts = lines.pairs[row].split(self._separator)
        for part in parts:
            pair = _PAIR.match(part)
            if pair is not None:
                pairs.append(pair)
                if part[pair.end() :].strip(b" )|"):
                    break  # another message begins in the middle of this line
            elif part.strip(b" |"):
                why = f"no number: {part[:80].decode('utf-8', 'replace')!r}"
                self._skip(lines.numbers[row], why)
        if not pairs:
            why = f"step {lines.steps[row]} without a readable value"
            return self._skip(lines.numbers[row], why)
        layout = self._layout_of(pairs)
        if layout not in known and len(layout.starts) == len(parts):
            known.append(layout)
        numbers = [pair["number"] for pair in pairs]
        self._append(layout, lines, [row], numbers, list(map(float, numbers)))

    def _layout_of(self, pairs: list[re.Match[bytes]]) -> Layout:
        starts = [pair.string[: pair.start("number")] for pair in pairs]
        layout = self._layouts.get(tuple(starts))
        if layout is None:
            keys = tuple(pair["key"].decode("utf-8", "replace") for pair in pairs)
            layout = self._layouts[tuple(starts)] = Layout(keys, starts, list(map(len, starts)))
        return layout

    def _append(
        self,
        layout: Layout,
        lines: PrintedLines,
        rows: list[int],
        numbers: list[bytes],
        values: list[float],
    ) -> None:
        layout.order.extend([self._num_before + row for row in rows])
        layout.steps.extend([lines.steps[row] for row in rows])
        layout.lines.extend([lines.numbers[row] for row in rows])
        layout.values.extend(values)
        layout.resolution.extend(self._resolve(numbers, len(layout.keys)))
        self.num_rows += len(rows)


def merge_rows(
    layouts: Sequence[Layout], source: str, framework: str | None
) -> tuple[tuple[MetricSeries, ...], int]:
    """Make one series per key; of a step that comes twice the later line wins.

    Returns:
        The series in order of appearance, and the number of values that were replaced.
    """
    series: list[MetricSeries] = []
    num_overwritten = 0
    merges: dict[tuple[int, ...], _Merge] = {}
    for key, places in _places(layouts).items():
        homes = tuple(index for index, _ in places)
        if homes not in merges:
            merges[homes] = _merge([layouts[index] for index in homes])
        merge = merges[homes]
        num_overwritten += merge.num_replaced
        columns = [(layouts[index], column) for index, column in places]
        series.append(
            MetricSeries(
                name=metric_name(framework, key),
                spelling=key,
                source=source,
                steps=merge.steps,
                values=merge.take([_column(home.values, home, i) for home, i in columns]),
                resolution=merge.take([_column(home.resolution, home, i) for home, i in columns]),
                lines=merge.lines,
            )
        )
    return tuple(series), num_overwritten + sum(map(_num_repeated_keys, layouts))


def unwrap_numbers(pairs: bytes, separator: bytes) -> bytes:
    """Turn np.float64(0.5) and tensor(0.5, device='npu:0') into 0.5; a key may have brackets."""
    if b"tensor(" in pairs:
        pairs = _TENSOR.sub(rb"\1", pairs)
    if b"np." in pairs:
        pairs = _NUMPY.sub(b"", pairs).replace(b")" + separator, separator).rstrip(b")\n ")
    return pairs


@dataclass(frozen=True, slots=True, eq=False)
class _Merge:
    """Which rows of some layouts remain, in order of step."""

    chosen: npt.NDArray[np.int64] | None  # None where all remain as they are
    steps: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    num_replaced: int

    def take(self, columns: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        values = _joined(columns)
        return values.copy() if self.chosen is None else values[self.chosen]


def _merge(homes: Sequence[Layout]) -> _Merge:
    import numpy as np

    steps = _joined([np.frombuffer(home.steps, np.int64) for home in homes])
    lines = _joined([np.frombuffer(home.lines, np.intc) for home in homes])
    if (steps[1:] > steps[:-1]).all():
        return _Merge(None, steps, lines.astype(np.int64), 0)
    order = _joined([np.frombuffer(home.order, np.intc) for home in homes])
    by_step = np.lexsort((order, steps))
    sorted_steps = steps[by_step]
    chosen = by_step[np.append(sorted_steps[1:] != sorted_steps[:-1], True)]
    return _Merge(chosen, steps[chosen], lines[chosen].astype(np.int64), len(steps) - len(chosen))


def _joined(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenate; a single column, which can be large, is not copied."""
    import numpy as np

    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _column(values: array[float], home: Layout, index: int) -> npt.NDArray[np.float64]:
    import numpy as np

    return np.frombuffer(values)[index :: len(home.keys)]


def _places(layouts: Sequence[Layout]) -> dict[str, list[tuple[int, int]]]:
    """Return key -> (layout, column); of a key that a line repeats, its last column."""
    places: dict[str, list[tuple[int, int]]] = {}
    for index, layout in enumerate(layouts):
        for key, column in dict(zip(layout.keys, range(len(layout.keys)), strict=True)).items():
            places.setdefault(key, []).append((index, column))
    return places


def _num_repeated_keys(layout: Layout) -> int:
    return len(layout) * (len(layout.keys) - len(set(layout.keys)))
