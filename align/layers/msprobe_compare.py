"""Compare the tensors of paired entries, in the order in which they were computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from align.core.errors import AlignError, DumpError
from align.core.threshold import Threshold
from align.layers.exact import (
    ExactDifference,
    Rearranged,
    Values,
    exact_difference,
    exact_differences,
    rearranged,
)
from align.layers.floor import layer_of
from align.layers.msprobe_floor import statistics_difference, tensor_floor
from align.layers.msprobe_pair import EntryPair, PairedDumps
from dumps.readers.mapped_tensor import mapped_tensor
from dumps.readers.msprobe import DumpedEntry, DumpedTensor
from dumps.readers.msprobe_keys import Direction

_ENTERING = ("input", "kwargs", "parameters")
_INTEGERS = ("int", "uint", "bool")


class Method(str, Enum):
    """What two tensors were compared by."""

    TENSOR = "tensor"
    STATISTICS = "statistics"
    DIGEST = "digest"


@dataclass(frozen=True, slots=True, eq=False)
class ComparedTensor:
    """One tensor of both dumps.

    Args:
        relative: ‖b - a‖ / ‖a‖, or the statistics' estimate of it; infinite where bits that only a
            digest stands for differ, or where the shapes do.
        limit: what rounding explains.
        gain: factor by which the candidate is the reference, as far as known.
        exact: all measures of whole tensors.
        axes: order of the candidate's axes that makes it comparable; None for its own.
    """

    pair: EntryPair
    reference: DumpedTensor
    candidate: DumpedTensor
    method: Method
    relative: float
    limit: Threshold
    gain: float = math.nan
    exact: ExactDifference | None = None
    axes: tuple[int, ...] | None = None
    same_shape: bool = True

    @property
    def enters(self) -> bool:
        """Whether it goes into the call: an input or a parameter."""
        return self.reference.place[0] in _ENTERING

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter of the module."""
        return self.reference.place[0] == "parameters"

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers or flags."""
        return self.reference.dtype.startswith(_INTEGERS)

    @property
    def differs(self) -> bool:
        """Whether the error is larger than rounding explains."""
        return self.relative > self.limit.value


Step = tuple[EntryPair, Sequence[ComparedTensor]]


def compare_entries(
    paired: PairedDumps, progress: Callable[[int], None] = lambda count: None
) -> tuple[list[Step], list[AlignError]]:
    """Compare every tensor both dumps have.

    Returns:
        For each call its beginning (inputs and parameters) and its end (outputs), in the order of
        computation; and what could not be read.
    """
    steps = list(_in_order(paired))
    rows = [(pair, one, two) for pair, both in steps for one, two in both]
    terms = {pair.reference.text: _terms(pair.reference) for pair in paired.pairs}
    deepest = 1 + max((layer_of(pair.inside) or 0 for pair in paired.pairs), default=0)
    arriving = _arriving(paired)
    limits = [
        _cancelling(
            tensor_floor(one, two, _depth(pair, deepest), terms[pair.reference.text]),
            one,
            arriving.get(pair.name, 0.0),
        )
        for pair, one, two in rows
    ]
    loaded, problems = _loaded(rows)
    alike = [values for values in loaded if values and values[0].raw.shape == values[1].raw.shape]
    found = iter(exact_differences(alike))
    compared = []
    for (pair, one, two), limit, values in zip(rows, limits, loaded, strict=True):
        if values is None:
            compared.append(_by_statistics(pair, one, two, limit))
        elif values[0].raw.shape == values[1].raw.shape:
            compared.append(_by_numbers(pair, one, two, limit, values, next(found)))
        else:
            compared.append(_by_layout(pair, one, two, limit, values))
    progress(len(rows))
    left = iter(compared)
    return [(pair, [next(left) for _ in both]) for pair, both in steps], problems


def _in_order(
    paired: PairedDumps,
) -> Iterator[tuple[EntryPair, list[tuple[DumpedTensor, DumpedTensor]]]]:
    """Yield what enters each call when it begins, and what leaves it when it ends."""
    by_text = {pair.reference.text: pair for pair in paired.pairs}
    begun: set[str] = set()
    for pair in paired.pairs:
        tensors = _same_places(pair)
        for above in (*paired.started[pair.reference.text], pair.reference.text):
            if above not in begun and above in by_text:
                begun.add(above)
                around = by_text[above]
                yield around, [t for t in _same_places(around) if t[0].place[0] in _ENTERING]
        yield pair, [t for t in tensors if t[0].place[0] not in _ENTERING]


def _same_places(pair: EntryPair) -> list[tuple[DumpedTensor, DumpedTensor]]:
    """Pair tensors by place; inputs given by position here and by name there by their order."""
    theirs = {tensor.place: tensor for tensor in pair.candidate.tensors}
    taken = {t.place for t in pair.reference.tensors if t.place in theirs}
    left = [t for p, t in theirs.items() if p not in taken and p[0] in ("input", "kwargs")]
    found = []
    for tensor in pair.reference.tensors:
        partner = theirs.get(tensor.place)
        if partner is None and tensor.place[0] in ("input", "kwargs") and left:
            partner = left.pop(0)
        if partner is not None:
            found.append((tensor, partner))
    return found


def _terms(entry: DumpedEntry) -> int:
    """Return the longest last axis of a call's tensors: sums run over features."""
    return max((tensor.shape[-1] for tensor in entry.tensors if tensor.shape), default=1)


def _depth(pair: EntryPair, deepest: int) -> int:
    layer = layer_of(pair.inside)
    is_last = layer is None and not pair.inside.endswith(("embed_tokens", "rotary_emb"))
    depth = deepest if is_last else 1 + (layer or 0)
    return depth if pair.direction is Direction.FORWARD else 2 * deepest + 1 - depth


def _arriving(paired: PairedDumps) -> dict[str, float]:
    """Return the norm of the gradient that arrives at each module's output."""
    return {
        pair.name: max(
            (t.norm or 0.0 for t in pair.reference.tensors if t.place[0] == "input"), default=0.0
        )
        for pair in paired.pairs
        if pair.direction is Direction.BACKWARD
    }


def _cancelling(floor: Threshold, tensor: DumpedTensor, arriving: float) -> Threshold:
    """Raise the floor of a vector's gradient, which is a sum over tokens, as its terms cancel.

    Independent errors of relative size e in the terms add up to e times the terms' own norm.
    """
    size = tensor.norm or 0.0
    if tensor.place[0] != "gradient" or len(tensor.shape) > 1 or not arriving > size > 0:
        return floor
    factor = arriving / size
    return Threshold(floor.value * factor, f"{floor.source}, times {factor:.3g} as terms cancel")


_Loaded = tuple[Values, Values] | None


def _loaded(
    rows: Sequence[tuple[EntryPair, DumpedTensor, DumpedTensor]],
) -> tuple[list[_Loaded], list[AlignError]]:
    """Map the files of both tensors, where there are any; count those that cannot be read."""
    found: list[_Loaded] = []
    broken: list[DumpError] = []
    for _, one, two in rows:
        values = None
        if one.file is not None and two.file is not None:
            try:
                values = _values(one.file), _values(two.file)
            except DumpError as error:
                broken.append(error)
        found.append(values)
    return found, _summed(broken)


def _values(file: Path) -> Values:
    tensor = mapped_tensor(file)
    return Values(tensor.dtype, tensor.values)


def _summed(broken: Sequence[DumpError]) -> list[AlignError]:
    if not broken:
        return []
    first = broken[0]
    problem = f"{first.problem}; {len(broken)} tensors are compared by statistics instead"
    return [DumpError(where=first.where, problem=problem, fix=first.fix)]


def _by_statistics(
    pair: EntryPair, one: DumpedTensor, two: DumpedTensor, limit: Threshold
) -> ComparedTensor:
    squeezed = [tuple(n for n in t.shape if n != 1) for t in (one, two)]
    same_shape = sorted(squeezed[0]) == sorted(squeezed[1])
    turned = tuple(range(len(two.shape)))[::-1] if squeezed[0] != squeezed[1] else None
    if one.digest is not None and two.digest is not None and one.dtype == two.dtype:
        if one.digest == two.digest:
            return ComparedTensor(pair, one, two, Method.DIGEST, 0.0, limit, 1.0)
        found = statistics_difference(one, two)
        if found is None or one.dtype.startswith(_INTEGERS):
            return ComparedTensor(pair, one, two, Method.DIGEST, math.inf, limit)
    found = statistics_difference(one, two)
    if found is None:
        return ComparedTensor(pair, one, two, Method.STATISTICS, 0.0, limit)
    relative = found.relative if same_shape else math.inf
    return ComparedTensor(
        *(pair, one, two, Method.STATISTICS, relative, limit, found.gain),
        axes=turned if same_shape else None,
        same_shape=same_shape,
    )


def _by_numbers(
    pair: EntryPair,
    one: DumpedTensor,
    two: DumpedTensor,
    limit: Threshold,
    values: tuple[Values, Values],
    found: ExactDifference,
) -> ComparedTensor:
    turned: Rearranged | None = None
    is_float = not one.dtype.startswith(_INTEGERS)
    if is_float and found.relative > max(0.1, limit.value) and found.not_finite_at < 0:
        turned = rearranged(*values, limit.value)
    if turned is not None:
        return _exact(pair, one, two, limit, turned.difference, turned.axes)
    return _exact(pair, one, two, limit, found)


def _by_layout(
    pair: EntryPair,
    one: DumpedTensor,
    two: DumpedTensor,
    limit: Threshold,
    values: tuple[Values, Values],
) -> ComparedTensor:
    """Compare tensors of other shapes: without axes of length 1, or with axes in another order."""
    own, other = (Values(v.dtype, v.raw.squeeze()) for v in values)
    flat = [v.raw.reshape(-1, v.raw.shape[-1]) for v in (own, other) if v.raw.ndim > 1]
    if own.raw.shape == other.raw.shape:
        return _exact(pair, one, two, limit, exact_difference(own, other))
    turned = rearranged(own, other, limit.value)
    if turned is not None:
        return _exact(pair, one, two, limit, turned.difference, turned.axes)
    if len(flat) == 2 and flat[0].shape == flat[1].shape:
        wide = Values(own.dtype, flat[0]), Values(other.dtype, flat[1])
        return _exact(pair, one, two, limit, exact_difference(*wide))
    if sorted(own.raw.shape) == sorted(other.raw.shape):
        return _closest(pair, one, two, limit, (own, other))
    return ComparedTensor(pair, one, two, Method.TENSOR, math.inf, limit, same_shape=False)


def _closest(
    pair: EntryPair,
    one: DumpedTensor,
    two: DumpedTensor,
    limit: Threshold,
    values: tuple[Values, Values],
) -> ComparedTensor:
    """Compare tensors that no order of axes makes equal in the order that is nearest."""
    best = rearranged(*values, math.inf)
    if best is None:
        return ComparedTensor(pair, one, two, Method.TENSOR, math.inf, limit, same_shape=False)
    return _exact(pair, one, two, limit, best.difference, best.axes)


def _exact(
    pair: EntryPair,
    one: DumpedTensor,
    two: DumpedTensor,
    limit: Threshold,
    found: ExactDifference,
    axes: tuple[int, ...] | None = None,
) -> ComparedTensor:
    relative = found.relative
    if one.dtype.startswith(_INTEGERS):
        relative = 0.0 if found.is_equal else math.inf
    return ComparedTensor(pair, one, two, Method.TENSOR, relative, limit, found.gain, found, axes)
