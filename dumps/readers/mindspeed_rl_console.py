"""Console logs of MindSpeed-RL: ``iteration: 1 / 500 | key : value | key : value |``.

Numbers have a fixed number of decimals (16 in early 2025, 4 since) and learning rates six
decimals and an exponent; the last printed digit is the resolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from align.core.metric import MetricLog
from align.core.run import ArtifactKind
from dumps.readers.console import MINDSPEED_RL, dialect_of, read_console
from dumps.readers.metric_rows import MetricRows
from dumps.readers.reader import Glimpse, Progress, Reader

FORMAT = "mindspeed_rl_console"


def _sniff(glimpse: Glimpse) -> bool:
    return dialect_of(glimpse) is MINDSPEED_RL


def _read(path: Path, progress: Progress) -> MetricLog:
    """Read the metrics of a MindSpeed-RL console log; one without any step has no series."""
    rows = MetricRows(MINDSPEED_RL.separator, _resolution)
    return read_console(path, FORMAT, MINDSPEED_RL, rows, progress)


def _resolution(numbers: Sequence[bytes], num_keys: int) -> Sequence[float]:
    return list(map(_last_digit, numbers))


def _last_digit(number: bytes) -> float:
    """Return what the last printed digit counts: 1e-4 for 52.0000, 1e-12 for 1.000000e-06."""
    mantissa, _, exponent = number.strip().partition(b"e")
    _whole, point, decimals = mantissa.partition(b".")
    return _power_of_ten(int(exponent or 0) - len(decimals)) if point else 0.0


@lru_cache(maxsize=1024)
def _power_of_ten(exponent: int) -> float:
    return float(f"1e{exponent}")


READER = Reader(FORMAT, ArtifactKind.METRICS, _sniff, _read)
