"""The error of every address of one step, all addresses at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from align.core.errors import DumpError
from align.layers.backward_rung import gradient_floors
from align.layers.floor import SKETCH, Dtypes, layer_of, num_layers, unit_roundoff
from align.layers.forward_rung import activation_floor
from dumps.readers.sketches import read_table
from dumps.store.record_table import Key, RecordTable, added_up
from dumps.store.tensor_records import Phase, TensorRecord

if TYPE_CHECKING:
    import numpy.typing as npt

    Float64 = npt.NDArray[np.float64]
    Rows = npt.NDArray[np.int64]

FORWARD = frozenset({Phase.FORWARD, Phase.INPUT})
_GRADIENTS = frozenset({Phase.GRADIENT, Phase.PARAMETER_GRADIENT})
_NUMBERS = 256  # of a sketch
_NAN, _INFINITIES, _DIGEST = 1, slice(2, 4), 5


@dataclass(frozen=True, slots=True)
class StepFiles:
    """The files of one step of both runs, a file a rank."""

    step: int
    reference: tuple[Path, ...]
    candidate: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some steps, or some layers of them: what one task compares.

    Args:
        part, parts: layers whose number leaves this remainder.
    """

    files: tuple[StepFiles, ...]
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class StepErrors:
    """What the addresses of a step differ by, in the reference's order of computation.

    Args:
        keys: addresses that both runs recorded over the same tokens and features.
        order: int64 [n].
        relative: float64 [n], ‖candidate - reference‖ / ‖reference‖ as of `measure.difference`.
        gain: float64 [n], the factor k for which k · reference is closest to the candidate.
        floor: float64 [n], error that rounding explains; NaN where no model says.
        reference_only, candidate_only, other_tokens: how many addresses are not compared.
    """

    step: int
    keys: tuple[Key, ...]
    order: Rows
    relative: Float64
    gain: Float64
    floor: Float64
    reference_only: int
    candidate_only: int
    other_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What comparing a chunk gave, and the files that could not be read."""

    steps: tuple[StepErrors, ...]
    problems: tuple[DumpError, ...]


def measure(chunk: Chunk) -> Measured:
    """Compare the steps of a chunk one after the other; one step of both runs is in memory."""
    steps: list[StepErrors] = []
    problems: list[DumpError] = []
    floors = _Floors()
    shared: dict[tuple[Key, ...], tuple[Key, ...]] = {}
    for files in chunk.files:
        try:
            own, other = (
                added_up([read_table(path) for path in paths])
                for paths in (files.reference, files.candidate)
            )
        except DumpError as error:
            problems.append(error)
            continue
        found = _errors(own, other, floors, chunk)
        # one object for all equal keys: sent to another process, they go once a chunk
        steps.append(replace(found, keys=shared.setdefault(found.keys, found.keys)))
    return Measured(tuple(steps), tuple(problems))


def _errors(
    reference: RecordTable, candidate: RecordTable, floors: _Floors, chunk: Chunk
) -> StepErrors:
    theirs = {key: row for row, key in enumerate(candidate.keys) if _is_in(key, chunk)}
    ours = [row for row, key in enumerate(reference.keys) if _is_in(key, chunk)]
    both = [(row, theirs[key]) for row in ours if (key := reference.keys[row]) in theirs]
    rows = np.array(both, dtype=np.int64).reshape(-1, 2)
    same = reference.counts[rows[:, 0], _DIGEST] == candidate.counts[rows[:, 1], _DIGEST]
    kept = rows[same]
    kept = kept[np.argsort(reference.order[kept[:, 0]], kind="stable")]
    own, other = kept[:, 0], kept[:, 1]
    relative, gain = _relative(reference.sketch[own], candidate.sketch[other])
    finite = _finite(reference.counts[own]), _finite(candidate.counts[other])
    whole = finite[0] & finite[1]
    return StepErrors(
        reference.step,
        tuple(reference.keys[row] for row in own),
        reference.order[own],
        np.where(whole, relative, np.where(finite[0] == finite[1], 0.0, np.inf)),
        np.where(whole, gain, np.nan),
        floors.of(reference, candidate, kept),
        len(ours) - len(rows),
        len(theirs) - len(rows),
        int(np.count_nonzero(~same)),
    )


def _relative(
    reference: npt.NDArray[np.floating], candidate: npt.NDArray[np.floating]
) -> tuple[Float64, Float64]:
    """Return relative error and gain of each of n sketches; see `measure.between`."""
    a, b = (each.reshape(len(each), _NUMBERS).astype(np.float64) for each in (reference, candidate))
    own, other, product = (np.einsum("ij,ij->i", *pair) for pair in ((a, a), (b, b), (a, b)))
    np.subtract(b, a, out=b)
    error = np.einsum("ij,ij->i", b, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative, gain = np.sqrt(error / own), product / own
    zero = own == 0
    relative = np.where(zero, np.where(other == 0, 0.0, np.inf), relative)
    return relative, np.where(zero, 0.0, gain)


def _finite(counts: Rows) -> npt.NDArray[np.bool_]:
    finite: npt.NDArray[np.bool_] = (counts[:, _NAN] == 0) & (counts[:, _INFINITIES] == 0).all(1)
    return finite


@cache
def _layer(name: str) -> int:
    return layer_of(name) or 0


def _is_in(key: Key, chunk: Chunk) -> bool:
    return chunk.parts == 1 or _layer(key[1]) % chunk.parts == chunk.part


@dataclass
class _Floors:
    """The floors of addresses, each worked out once as long as nothing it depends on changes."""

    known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def of(self, reference: RecordTable, candidate: RecordTable, rows: Rows) -> Float64:
        """Return the floors of pairs of rows [n, 2]."""
        layers = num_layers([key[1] for key in reference.keys if key[0] == Phase.GRADIENT])
        usual = {
            phases: (_usual(reference, phases), _usual(candidate, phases))
            for phases in (FORWARD, _GRADIENTS)
        }
        floors = np.full(len(rows), np.nan)
        for i, (own, other) in enumerate(rows.tolist()):
            phase = reference.keys[own][0]
            phases = FORWARD if phase in FORWARD else _GRADIENTS
            shape = reference.shapes[own]
            ends = (shape[-1:], shape[:1] if phase in _GRADIENTS else ())
            dtypes = reference.dtypes[own], candidate.dtypes[other]
            key = (reference.keys[own], dtypes, ends, usual[phases], layers)
            if key not in self.known:
                records = reference.record(own), candidate.record(other)
                self.known[key] = _floor(*records, usual[phases], layers)
            floors[i] = self.known[key]
        return floors * _cancellation(reference, rows[:, 0])


def _cancellation(reference: RecordTable, rows: Rows) -> Float64:
    """Return `backward_rung.cancellation` of some rows, 1 for what is no gradient of a bias."""
    sizes = {
        key[1:]: reference.moments[row, 0]
        for row, key in enumerate(reference.keys)
        if key[0] == Phase.GRADIENT
    }
    times = np.ones(len(rows))
    for i, row in enumerate(rows.tolist()):
        phase, name, update = reference.keys[row]
        if phase == Phase.PARAMETER_GRADIENT and name.endswith(".bias"):
            terms = sizes.get((name.removesuffix(".bias"), update), 0.0)
            own = reference.moments[row, 0]
            times[i] = terms / own if terms > own > 0 else 1.0
    return times


def _floor(reference: TensorRecord, candidate: TensorRecord, usual: Dtypes, layers: int) -> float:
    """Return the floor that the rungs use, which compare one step."""
    if reference.phase in FORWARD:
        return activation_floor(reference, candidate, usual=usual).value
    if reference.phase in _GRADIENTS:
        return gradient_floors(layers, usual)(reference, candidate).value
    if reference.phase == Phase.PARAMETER:
        narrow = reference.dtype != candidate.dtype
        return unit_roundoff(reference, candidate) if narrow else SKETCH
    return float("nan")


def _usual(table: RecordTable, phases: Iterable[str]) -> str:
    found = Counter(
        dtype for key, dtype in zip(table.keys, table.dtypes, strict=True) if key[0] in phases
    )
    return found.most_common(1)[0][0] if found else "float32"
