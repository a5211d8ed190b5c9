"""What a run shows of its row order: prompts of its dumps, or lengths in its log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from align.core.data_set import DataSet
from align.core.metric import MetricLog, MetricSeries
from align.data.match_rows import NO_ROW, match_prompts, row_texts
from align.data.torch_generator import Int64
from dumps.store.rollout_pair import SideRows, group_size

_MAX_PROMPTS = 8192  # distinct prompts read again; the steps that hold them are enough
_FEWEST_MATCHED = 0.9  # of the prompts: fewer come from another data set
_FLOAT32_REL = 2.0**-22
_LENGTHS: Mapping[str, Callable[..., np.generic]] = {
    "prompt_length/mean": np.mean,
    "prompt_length/max": np.max,
    "prompt_length/min": np.min,
}
_BITS_OF_LENGTHS = 3.0  # what a step's three numbers are trusted to tell, in decimal digits


class Witness(Protocol):
    """Says whether a predicted step is the one the run saw."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps it knows, ascending."""
        ...

    def agrees(self, step: int, rows: Int64) -> bool:
        """Tell whether these rows can be what the run saw at this step."""
        ...

    def digits(self, num_rows: int, batch_size: int) -> float:
        """Return how many decimal digits one step's agreement is worth against chance."""
        ...


@dataclass(frozen=True)
class PromptWitness:
    """Questions of each step, from rollout dumps.

    Args:
        seen: step -> how often each question stands in it.
        of_row: int64 [n], question of each data-set row.
    """

    seen: Mapping[int, Counter[int]]
    of_row: Int64

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Steps of the dumps."""
        return tuple(sorted(self.seen))

    def agrees(self, step: int, rows: Int64) -> bool:
        """Compare as multisets: dumps keep no order."""
        return len(rows) > 0 and Counter(self.of_row[rows].tolist()) == self.seen[step]

    def digits(self, num_rows: int, batch_size: int) -> float:
        """Return log10 of the number of batches that could be drawn."""
        n, k = len(np.unique(self.of_row)), batch_size
        if k > n:
            return 1.0
        return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(10)


@dataclass(frozen=True)
class LengthWitness:
    """Prompt length statistics of each step, from a log, against lengths in tokens of the rows."""

    series: Mapping[str, MetricSeries]
    lengths: npt.NDArray[np.int64]

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Steps every one of the metrics has."""
        common = set.intersection(*(set(s.steps.tolist()) for s in self.series.values()))
        return tuple(sorted(step for step in common if step > 0))

    @cached_property
    def _values(self) -> Mapping[int, Mapping[str, tuple[float, float]]]:
        values: dict[int, dict[str, tuple[float, float]]] = {step: {} for step in self.steps}
        for name, series in self.series.items():
            for i, step in enumerate(series.steps.tolist()):
                if step in values:
                    tolerance = float(series.resolution[i]) / 2
                    values[step][name] = (float(series.values[i]), tolerance)
        return values

    def agrees(self, step: int, rows: Int64) -> bool:
        """Compare mean, maximum and minimum to what printing and float32 can show."""
        for name, (value, tolerance) in self._values[step].items():
            own = float(_LENGTHS[name](self.lengths[rows]))
            if not abs(own - value) <= tolerance + _FLOAT32_REL * abs(own):
                return False
        return True

    def digits(self, num_rows: int, batch_size: int) -> float:
        """Return little where all rows are about equally long, and nothing where they are."""
        spread = float(np.ptp(self.lengths)) if len(self.lengths) else 0.0
        return min(_BITS_OF_LENGTHS, math.log10(1 + spread))


def prompt_witness(side: SideRows, data_set: DataSet) -> PromptWitness | None:
    """Match a run's dumps to its data set; None where they do not fit each other."""
    if data_set.prompts is None:
        return None
    rows = side.take((side.prompt >= 0) & (side.step > 0))
    if not len(rows):
        return None
    size = group_size(rows)
    rows = _first_steps(rows)
    numbers, first = np.unique(rows.prompt, return_index=True)
    rendered = [row.prompt for row in rows.index.texts(rows.row[first])]
    texts = row_texts(data_set.prompts)
    questions = match_prompts(rendered, texts)
    if np.mean(questions != NO_ROW) < _FEWEST_MATCHED:
        return None
    seen: dict[int, Counter[int]] = {}
    of_rows = questions[np.searchsorted(numbers, rows.prompt)]
    for step in np.unique(rows.step).tolist():
        found, counts = np.unique(of_rows[rows.step == step], return_counts=True)
        times = np.ones(len(counts)) if size is None else np.maximum(1, np.rint(counts / size))
        seen[step] = Counter(dict(zip(found.tolist(), times.astype(int).tolist(), strict=True)))
    return PromptWitness(seen, texts.of_row)


def length_witness(metrics: MetricLog, lengths: tuple[int, ...] | None) -> LengthWitness | None:
    """Use a log's prompt length metrics; None without them, or where they cannot differ."""
    found = {name: metrics.get(name) for name in _LENGTHS}
    series = {name: log for name, log in found.items() if log is not None}
    if not series or not lengths or "prompt_length/mean" not in series:
        return None
    return LengthWitness(series, np.array(lengths, np.int64))


def _first_steps(rows: SideRows) -> SideRows:
    """Return the first steps that together hold no more prompts than are read again."""
    steps = np.unique(rows.step)
    seen: set[int] = set()
    last = steps[0]
    for step in steps.tolist():
        seen |= set(rows.prompt[rows.step == step].tolist())
        if len(seen) > _MAX_PROMPTS and step != steps[0]:
            break
        last = step
    return rows.take(rows.step <= last)
