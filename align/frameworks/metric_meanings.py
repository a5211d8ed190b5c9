"""What each metric measures, and on which link of the chain: `metric_meanings.tsv`, read once.

Its first row that matches a name decides; in ``names``, ``*`` stands for any text and ``|``
separates alternatives. Where two links could be named, the one that computes the quantity is:
``training/rollout_probs_diff_*`` and ``rollout_corr/*`` compare the rollout engine's forward pass
with the trainer's, so they belong to `Rung.FORWARD`; a weight synchronisation that fails shows in
them too, one step later. Validation evaluates the trained policy: `Rung.EVALS`.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files

from align.core.rung import Rung
from align.core.text import Text


class MetricKind(str, Enum):
    """How two series of a quantity can be compared."""

    POSITIVE = "positive"  # at or above zero, its size is its meaning: ratios of two series
    LEVEL = "level"  # any sign, on a scale the task sets: differences against its range
    SIGNED = "signed"  # around zero: a relative difference means nothing
    BOUNDED = "bounded"  # a share of 0..1, or a correlation: absolute differences
    EXTREME = "extreme"  # one sample, the largest or smallest: noisier than any mean
    SCHEDULE = "schedule"  # follows from the configuration: equal, or configured differently
    COUNTER = "counter"  # counts work done; no numerics
    PERFORMANCE = "performance"  # time, memory, throughput, load; no numerics
    BOOKKEEPING = "bookkeeping"  # step, epoch, flags; no numerics
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MeaningRow:
    """One row of the table; ``kind`` is that of the mean, where names are a family."""

    pattern: re.Pattern[str]
    rung: Rung
    kind: MetricKind
    unit: str
    meaning: Text


@cache
def meaning_rows() -> tuple[MeaningRow, ...]:
    """Read the table of this package."""
    text = (files("align.frameworks") / "metric_meanings.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(
        MeaningRow(
            re.compile(
                "|".join(re.escape(n).replace(r"\*", ".*") for n in row["names"].split("|"))
            ),
            Rung(row["rung"]),
            MetricKind(row["kind"]),
            row["unit"],
            Text(row["en"], row["zh"]),
        )
        for row in rows
    )
