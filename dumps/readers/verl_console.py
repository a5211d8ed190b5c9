"""Console logs of verl, 0.1 to 0.9: ``step:N - key:value - key:value``.

Up to 0.4 verl prints every number with three decimals; since 0.5 it prints all digits, and then
``1.5`` or ``0.515`` is complete. The line tells which of the two it is: a line of four or more
numbers was rounded if each of them has exactly three decimals. Shorter lines are judged together,
and are not taken for rounded in a file whose longer lines are not.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from align.core.metric import MetricLog
from align.core.run import ArtifactKind
from dumps.readers.console import VERL, dialect_of, read_console
from dumps.readers.metric_rows import Layout, MetricRows
from dumps.readers.reader import Glimpse, Progress, Reader

FORMAT = "verl_console"

_ROUNDED = 0.001
_LONG_LINE = 4
_point = itemgetter(slice(-4, -3))  # b"." of b"0.123"
_MAY_BE_ROUNDED = (b".", b"", b"-")  # 0.123, nan, -inf


def _sniff(glimpse: Glimpse) -> bool:
    return dialect_of(glimpse) is VERL


def _read(path: Path, progress: Progress) -> MetricLog:
    """Read the metrics of a verl console log; a log without any step has no series."""
    return read_console(path, FORMAT, VERL, VerlRows(), progress)


class VerlRows(MetricRows):
    """Metric lines of verl, with the rule for rounded numbers."""

    def __init__(self) -> None:
        super().__init__(VERL.separator, _resolution)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Distinct layouts, short lines judged."""
        layouts = super().layouts
        short = [layout for layout in layouts if len(layout.keys) < _LONG_LINE]
        long = [layout for layout in layouts if len(layout.keys) >= _LONG_LINE]
        some_long = not long or any(_ROUNDED in layout.resolution for layout in long)
        if not some_long or any(0.0 in layout.resolution for layout in short):
            for layout in short:
                layout.resolution = array("d", bytes(8 * len(layout.values)))
        return layouts


def _resolution(numbers: Sequence[bytes], num_keys: int) -> Sequence[float]:
    points = list(map(_point, numbers))
    if points.count(b".") == len(points):
        return [_ROUNDED] * len(points)
    resolution = [0.0] * len(points)
    firsts = zip(range(0, len(points), num_keys), points[::num_keys], strict=True)
    for start in [start for start, point in firsts if point in _MAY_BE_ROUNDED]:
        line = slice(start, start + num_keys)
        if b"." in points[line] and all(map(_may_be_rounded, numbers[line])):
            resolution[line] = [_ROUNDED] * num_keys
    return resolution


def _may_be_rounded(number: bytes) -> bool:
    """Tell whether a number has three decimals or, as NaN and infinity, none to show."""
    return _point(number) == b"." or number.strip().lstrip(b"+-")[:1] in (b"n", b"i")


READER = Reader(FORMAT, ArtifactKind.METRICS, _sniff, _read)
