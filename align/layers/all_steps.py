"""Every step that both runs recorded: where and when errors are first larger than is explained.

As `walk` does for one step: an error is explained by its floor, or by `GROWTH` times the largest
error of what it is computed from. That includes the weights of the step, so that runs whose weights
have drifted apart are not accused at every layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from align.core.errors import DumpError
from align.layers.floor import GROWTH
from align.layers.spread import Spread, chunks
from align.layers.step_errors import FORWARD, StepErrors, StepFiles, measure
from dumps.store.record_table import Key
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase

if TYPE_CHECKING:
    import numpy.typing as npt

    Float64 = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

COLUMNS = 24
"""Groups of steps in a heat map, at most."""


@dataclass(frozen=True, slots=True)
class Departure:
    """An address whose error nothing explains."""

    step: int
    key: Key
    relative: float
    gain: float
    limit: float


@dataclass(slots=True)
class AddressErrors:
    """One address over all steps.

    Args:
        limit: what was explained in the step of the worst error; NaN where no model says.
        first: the first step with an error beyond what is explained.
        by_columns: largest error in each group of steps; NaN where there is none.
    """

    key: Key
    order: int
    count: int = 0
    beyond: int = 0
    worst: float = -1.0
    worst_step: int = -1
    limit: float = float("nan")
    first: int | None = None
    by_columns: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class AllSteps:
    """What comparing all steps gave.

    Args:
        steps: those that both runs recorded.
        columns: first and last step of each group of the heat map.
        departure: the first of the first step that has one.
        num_records: pairs of records compared.
        not_compared: addresses on one side alone, and those over other tokens, of all steps.
    """

    steps: tuple[int, ...]
    columns: tuple[tuple[int, int], ...]
    addresses: tuple[AddressErrors, ...]
    departure: Departure | None
    num_records: int
    not_compared: tuple[int, int]


def common_files(reference: RunData, candidate: RunData) -> list[StepFiles]:
    """Return the files of the steps that both runs recorded."""
    own, other = reference.sketch_files, candidate.sketch_files
    return [
        StepFiles(
            step,
            tuple(file.path for file in own[step]),
            tuple(file.path for file in other[step]),
        )
        for step in own
        if step in other
    ]


def compare_steps(files: Sequence[StepFiles], spread: Spread) -> tuple[AllSteps, list[DumpError]]:
    """Compare all steps; a chunk at a time is in memory, and a few numbers an address.

    Returns:
        what was found, and a problem for each step that could not be read.
    """
    problems: list[DumpError] = []

    def measured() -> Iterator[StepErrors]:
        for each in spread.map_chunks(measure, chunks(files, spread.workers)):
            problems.extend(each.problems)
            yield from each.steps

    found = summed_up(measured(), [each.step for each in files])
    return found, problems


def summed_up(measured: Iterable[StepErrors], steps: Sequence[int]) -> AllSteps:
    """Judge steps in their order, the parts of one step one after the other."""
    columns = [part for part in np.array_split(np.array(steps), COLUMNS) if len(part)]
    column_of = {int(step): i for i, part in enumerate(columns) for step in part}
    addresses: dict[Key, AddressErrors] = {}
    departure, num_records, alone, other_tokens = None, 0, 0, 0
    for step, parts in groupby(measured, key=lambda errors: errors.step):
        errors = joined(list(parts))
        limit = limits(errors)
        _add(addresses, errors, limit, column_of[step], len(columns))
        departure = departure or first_departure(errors, limit)
        num_records += len(errors.keys)
        alone += errors.reference_only + errors.candidate_only
        other_tokens += errors.other_tokens
    return AllSteps(
        tuple(steps),
        tuple((int(part[0]), int(part[-1])) for part in columns),
        tuple(sorted(addresses.values(), key=lambda each: each.order)),
        departure,
        num_records,
        (alone, other_tokens),
    )


def joined(parts: Sequence[StepErrors]) -> StepErrors:
    """Join the parts of one step."""
    if len(parts) == 1:
        return parts[0]
    keys = [key for part in parts for key in part.keys]
    order = np.concatenate([part.order for part in parts])
    rows = np.argsort(order, kind="stable")
    return StepErrors(
        parts[0].step,
        tuple(keys[row] for row in rows),
        order[rows],
        np.concatenate([part.relative for part in parts])[rows],
        np.concatenate([part.gain for part in parts])[rows],
        np.concatenate([part.floor for part in parts])[rows],
        sum(part.reference_only for part in parts),
        sum(part.candidate_only for part in parts),
        sum(part.other_tokens for part in parts),
    )


def limits(errors: StepErrors) -> Float64:
    """Return the error that is explained at each address, NaN where no model says.

    Returns:
        float64 [n].
    """
    phases = np.array([key[0] for key in errors.keys])
    limit = errors.floor.copy()
    before = _worst(errors.relative[phases == Phase.PARAMETER], 0.0)
    for chain in (np.isin(phases, list(FORWARD)), phases == Phase.GRADIENT):
        own = errors.relative[chain]
        earlier = np.maximum.accumulate(np.concatenate([[before], own]))[:-1]
        limit[chain] = np.fmax(limit[chain], GROWTH.value * earlier)
        before = _worst(own, before)
    weights = phases == Phase.PARAMETER_GRADIENT
    limit[weights] = np.fmax(limit[weights], GROWTH.value * before)
    return limit


def first_departure(errors: StepErrors, limit: Float64) -> Departure | None:
    """Return the first address beyond its limit; weights that differ are no module's fault."""
    for row in np.flatnonzero(errors.relative > limit).tolist():
        if errors.keys[row][0] != Phase.PARAMETER:
            relative, gain = float(errors.relative[row]), float(errors.gain[row])
            return Departure(errors.step, errors.keys[row], relative, gain, float(limit[row]))
    return None


def _worst(relative: Float64, known: float) -> float:
    return max(known, float(np.nanmax(relative))) if len(relative) else known


def _add(
    addresses: dict[Key, AddressErrors],
    errors: StepErrors,
    limit: Float64,
    column: int,
    columns: int,
) -> None:
    beyond = (errors.relative > limit).tolist()
    rows = zip(
        *(errors.keys, errors.order.tolist(), errors.relative.tolist(), limit.tolist(), beyond),
        strict=True,
    )
    for key, order, relative, own_limit, is_beyond in rows:
        known = addresses.get(key)
        if known is None:
            known = AddressErrors(key, order, by_columns=[float("nan")] * columns)
            addresses[key] = known
        known.count += 1
        if relative > known.worst:
            known.worst, known.worst_step, known.limit = relative, errors.step, own_limit
        if not relative <= known.by_columns[column]:
            known.by_columns[column] = relative
        if is_beyond:
            known.beyond += 1
            known.first = errors.step if known.first is None else known.first
