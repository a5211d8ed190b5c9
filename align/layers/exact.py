"""Two whole tensors compared number by number.

Numbers are subtracted in float64, chunk by chunk, so that memory stays small and mapped files are
read once. Where there are many, numba takes all sums in one pass, if it is installed (the extra
``fast``): then two threads take two cores. NaN never equals a number: positions where either side
is not finite are counted and left out of every other measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from itertools import permutations
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from align.layers.floor import ACCUMULATED, UNIT_ROUNDOFF

if TYPE_CHECKING:
    import numpy.typing as npt

    Raw = npt.NDArray[Any]
    Float64 = npt.NDArray[np.float64]

CHUNK = 1 << 16
"""Numbers at a time: what is computed of them stays in a core's own cache."""
TASK = 1 << 22
_WORTH = 1 << 26  # numbers of one side; fewer take NumPy no longer than numba takes to start
_WORKERS = 2
_ORDERED = {"float32": np.int32, "float16": np.int16, "bfloat16": np.int16}
_MAX_AXES = 4
_ALIKE = 1e-6
_UNTHREADED = 8192  # longer dot products are shared among OpenBLAS's own threads


@dataclass(frozen=True, slots=True)
class Values:
    """A tensor's numbers and torch's name of their dtype; bfloat16 as raw 16 bits."""

    dtype: str
    raw: Raw


@dataclass(frozen=True, slots=True)
class ExactDifference:
    """A candidate's tensor against the reference's, or a part of both.

    Args:
        count: numbers in each.
        reference_square, candidate_square, product, error_square: sums of a², b², ab and (b - a)².
        max_abs, max_abs_at: largest |b - a| and its flat index.
        max_ulp: largest distance in representable numbers, where both have one floating dtype.
        beyond: how many differ by more than four units of the coarser dtype's roundoff, relative.
        sign_flips: how many have opposite signs.
        unequal: how many differ at all; NaN against NaN is equal.
        not_finite: of each side.
        not_finite_at: first flat index where one side alone is not finite, -1 where there is none.
    """

    count: int = 0
    reference_square: float = 0.0
    candidate_square: float = 0.0
    product: float = 0.0
    error_square: float = 0.0
    max_abs: float = 0.0
    max_abs_at: int = -1
    max_ulp: int = 0
    beyond: int = 0
    sign_flips: int = 0
    unequal: int = 0
    not_finite: tuple[int, int] = (0, 0)
    not_finite_at: int = -1

    @property
    def relative(self) -> float:
        """‖b - a‖ / ‖a‖; infinite against a zero reference, or where one side is not finite."""
        if self.not_finite_at >= 0 or math.isinf(self.error_square):
            return math.inf
        if self.reference_square == 0:
            return 0.0 if self.error_square == 0 else math.inf
        return math.sqrt(self.error_square / self.reference_square)

    @property
    def cosine(self) -> float:
        """Cosine of the angle between both; NaN where one is zero."""
        size = math.sqrt(self.reference_square * self.candidate_square)
        return self.product / size if size else math.nan

    @property
    def gain(self) -> float:
        """The factor k for which k · a is closest to b."""
        return self.product / self.reference_square if self.reference_square else math.nan

    @property
    def residual(self) -> float:
        """Relative error left after that factor."""
        if not self.reference_square:
            return self.relative
        left = self.candidate_square - self.product**2 / self.reference_square
        return math.sqrt(max(0.0, left) / self.reference_square)

    @property
    def is_equal(self) -> bool:
        """Whether no number differs."""
        return self.unequal == 0

    def added(self, other: ExactDifference) -> ExactDifference:
        """Return the difference of both parts together."""
        larger = self if self.max_abs >= other.max_abs else other
        places = [at for at in (self.not_finite_at, other.not_finite_at) if at >= 0]
        return ExactDifference(
            self.count + other.count,
            self.reference_square + other.reference_square,
            self.candidate_square + other.candidate_square,
            self.product + other.product,
            self.error_square + other.error_square,
            larger.max_abs,
            larger.max_abs_at,
            max(self.max_ulp, other.max_ulp),
            self.beyond + other.beyond,
            self.sign_flips + other.sign_flips,
            self.unequal + other.unequal,
            (
                self.not_finite[0] + other.not_finite[0],
                self.not_finite[1] + other.not_finite[1],
            ),
            min(places, default=-1),
        )


def exact_difference(reference: Values, candidate: Values) -> ExactDifference:
    """Compare two tensors of one shape."""
    return exact_differences([(reference, candidate)])[0]


def exact_differences(
    pairs: Sequence[tuple[Values, Values]], *, workers: int = _WORKERS
) -> list[ExactDifference]:
    """Compare many pairs of tensors, each pair of one shape, on some threads.

    Raises:
        ValueError: Two tensors of a pair have different shapes.
    """
    tasks = [
        (number, ours, theirs, start)
        for number, (one, other) in enumerate(pairs)
        for ours, theirs in [_flat_pair(one, other)]
        for start in range(0, len(ours.raw), TASK)
    ]
    kernel = _kernel(sum(one.raw.size for one, _ in pairs))
    parts: list[list[ExactDifference]] = [[] for _ in pairs]
    with ThreadPoolExecutor(workers) as pool:
        done = pool.map(lambda task: _range_difference(task[1], task[2], task[3], kernel), tasks)
        for task, part in zip(tasks, done, strict=True):
            parts[task[0]].append(part)
    return [reduce(ExactDifference.added, found, ExactDifference()) for found in parts]


def _kernel(count: int) -> ModuleType | None:
    """Return the compiled pass where so many numbers are worth its start, and it is installed."""
    if count < _WORTH:
        return None
    try:
        from align.layers import exact_kernel
    except ImportError:
        return None
    return exact_kernel


def _flat_pair(one: Values, other: Values) -> tuple[Values, Values]:
    if one.raw.shape != other.raw.shape:
        raise ValueError(f"shapes {one.raw.shape} and {other.raw.shape} differ")
    return _flat(one), _flat(other)


def _flat(values: Values) -> Values:
    """Return the numbers in order of index; a copy only where they lie otherwise."""
    return Values(values.dtype, values.raw.reshape(-1))


def _range_difference(
    one: Values, other: Values, start: int, kernel: ModuleType | None
) -> ExactDifference:
    """Compare the numbers from ``start`` on, at most `TASK` of them."""
    scratch = _Scratch()
    is_fused = one.dtype == other.dtype and one.dtype in _ORDERED
    stop = min(start + TASK, len(one.raw))
    found = ExactDifference()
    for at in range(start, stop, CHUNK):
        here = slice(at, min(at + CHUNK, stop))
        ours, theirs = (Values(each.dtype, each.raw[here]) for each in (one, other))
        if kernel is not None and is_fused:
            part = _fused_chunk(ours, theirs, scratch, kernel, found.max_abs)
        else:
            part = _chunk(ours, theirs, scratch)
        if part.max_abs_at >= 0 or part.not_finite_at >= 0:
            part = _moved(part, at)
        found = found.added(part)
    return found


def _moved(part: ExactDifference, by: int) -> ExactDifference:
    return replace(
        part,
        max_abs_at=part.max_abs_at + by if part.max_abs_at >= 0 else -1,
        not_finite_at=part.not_finite_at + by if part.not_finite_at >= 0 else -1,
    )


class _Scratch:
    """Buffers of one thread's task, so that no chunk allocates."""

    def __init__(self) -> None:
        self.one, self.other, self.error = np.empty((3, CHUNK))
        self.flags = np.empty(CHUNK, dtype=bool)
        self.bits, self.apart = np.empty((2, CHUNK), dtype=np.uint32)
        self.narrow = np.empty((2, CHUNK), dtype=np.float32)


def _chunk(one: Values, other: Values, scratch: _Scratch) -> ExactDifference:
    a = _as_float64(one, scratch.one, scratch.bits)
    apart = _bits_apart(one, other, scratch.apart)
    unequal = None if apart is None else int(np.count_nonzero(apart))
    if unequal == 0:
        square = _dot(a, a)
        if math.isfinite(square):
            return ExactDifference(len(a), square, square, square)
    b = _as_float64(other, scratch.other, scratch.bits)
    error = scratch.error[: len(a)]
    with np.errstate(invalid="ignore"):
        np.subtract(b, a, out=error)
    square = _dot(error, error)
    if not math.isfinite(square):
        return _with_holes(one, other, a, b)
    np.abs(error, out=error)
    at = int(error.argmax())
    flags = scratch.flags[: len(a)]
    own, theirs = _dot(a, a), _dot(b, b)
    product = _product(a, b, own, theirs, square)
    ulps, flips = None if apart is None else _ulps_of_one_sign(one, other, apart), 0
    if unequal is None or ulps is None:
        ulps = _ulps(one, other)
        unequal = int(np.count_nonzero(np.not_equal(error, 0.0, out=flags)))
        flips = int(np.count_nonzero(np.less(np.multiply(a, b, out=b), 0.0, out=flags)))
    np.abs(a, out=a)
    np.multiply(a, _tolerance(one.dtype, other.dtype), out=a)
    beyond = int(np.count_nonzero(np.greater(error, a, out=flags)))
    largest = float(error[at])
    return ExactDifference(
        len(error),
        own,
        theirs,
        product,
        square,
        largest,
        at if largest > 0 else -1,
        ulps,
        beyond,
        flips,
        unequal,
    )


def _fused_chunk(
    one: Values, other: Values, scratch: _Scratch, kernel: ModuleType, largest_yet: float
) -> ExactDifference:
    """Compare a chunk of one dtype that float32 holds.

    Args:
        largest_yet: only a larger difference's place is looked for.
    """
    elements = [_elements(*each) for each in zip((one, other), scratch.narrow, strict=True)]
    tolerance = _tolerance(one.dtype, other.dtype)
    own, theirs, product, square, largest, beyond = kernel.sums(*elements, tolerance)
    if not math.isfinite(square):
        return _with_holes(one, other, *_both_as_float64(one, other, scratch))
    bits, theirs_bits = (values.raw.view(_ORDERED[one.dtype]) for values in (one, other))
    lowest = -(1 << (8 * bits.itemsize - 1))
    ulps, unequal, flips = kernel.ulps(bits, theirs_bits, lowest)
    at = -1
    if largest > largest_yet:
        a, b = _both_as_float64(one, other, scratch)
        at = int(np.abs(np.subtract(b, a, out=b), out=b).argmax())
    return ExactDifference(
        len(one.raw), own, theirs, product, square, largest, at, ulps, int(beyond), flips, unequal
    )


def _product(a: Float64, b: Float64, own: float, theirs: float, error: float) -> float:
    """Return Σ ab, from Σ (b - a)² = Σ a² + Σ b² - 2 Σ ab where that loses nothing."""
    if min(own, theirs) < _ALIKE * max(own, theirs):
        return _dot(a, b)
    return (own + theirs - error) / 2


def _dot(one: Float64, other: Float64) -> float:
    """Return Σ ab on this thread alone, in half of einsum's time."""
    whole = len(one) // _UNTHREADED * _UNTHREADED
    rows, columns = (part[:whole].reshape(-1, _UNTHREADED) for part in (one, other))
    blocks = np.matmul(rows[:, None, :], columns[:, :, None])
    return float(blocks.sum()) + float(np.dot(one[whole:], other[whole:]))


def _with_holes(one: Values, other: Values, a: Float64, b: Float64) -> ExactDifference:
    """Compare a chunk that holds NaN or infinity: only where both sides are finite."""
    holes = ~np.isfinite(a), ~np.isfinite(b)
    both = ~(holes[0] | holes[1])
    if both.all():  # finite numbers, and squares that float64 does not hold
        return ExactDifference(len(a), math.inf, math.inf, math.inf, math.inf)
    wide = Values("float64", a[both]), Values("float64", b[both])
    found = _chunk(*wide, _Scratch()) if both.any() else ExactDifference()
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    alone = np.flatnonzero(~both & ~same)
    places = np.flatnonzero(both)
    return replace(
        found,
        count=len(a),
        max_abs_at=int(places[found.max_abs_at]) if found.max_abs_at >= 0 else -1,
        max_ulp=_ulps(Values(one.dtype, one.raw[both]), Values(other.dtype, other.raw[both])),
        unequal=int(np.count_nonzero(~same)),
        not_finite=(int(holes[0].sum()), int(holes[1].sum())),
        not_finite_at=int(alone[0]) if len(alone) else -1,
    )


def _elements(values: Values, buffer: npt.NDArray[np.float32]) -> Raw:
    """Return what the kernel takes: float32 numbers, or bfloat16's bits without a sign."""
    if values.dtype == "bfloat16":
        return values.raw.view(np.uint16)
    if values.dtype == "float32":
        return values.raw
    target = buffer[: len(values.raw)]
    np.copyto(target, values.raw)
    return target


def _both_as_float64(one: Values, other: Values, scratch: _Scratch) -> tuple[Float64, Float64]:
    own = _as_float64(one, scratch.one, scratch.bits)
    return own, _as_float64(other, scratch.other, scratch.bits)


def _as_float64(values: Values, buffer: Float64, bits: npt.NDArray[np.uint32]) -> Float64:
    target = buffer[: len(values.raw)]
    if values.dtype == "bfloat16":
        wide = bits[: len(target)]
        np.copyto(wide, values.raw.view(np.uint16))
        np.left_shift(wide, 16, out=wide)
        np.copyto(target, wide.view(np.float32))
    else:
        np.copyto(target, values.raw, casting="unsafe")
    return target


def _bits_apart(one: Values, other: Values, buffer: npt.NDArray[np.uint32]) -> Raw | None:
    """Return which bits of each number differ; None where the dtypes do or have no order."""
    kind = _ORDERED.get(one.dtype)
    if kind is None or one.dtype != other.dtype:
        return None
    apart: Raw = buffer.view(kind)[: len(one.raw)]
    np.bitwise_xor(one.raw.view(kind), other.raw.view(kind), out=apart)
    return apart


def _tolerance(*dtypes: str) -> float:
    return 4 * max(UNIT_ROUNDOFF.get(dtype, ACCUMULATED) for dtype in dtypes)


def _ulps_of_one_sign(one: Values, other: Values, apart: Raw) -> int | None:
    """Return the largest distance in representable numbers, None where a sign changes.

    Without a change of sign, be it of a zero, it is that of the bits, which are narrower than
    float64.

    Args:
        apart: of `_bits_apart`; holds something else afterwards.
    """
    if apart.min() < 0:
        return None
    np.subtract(one.raw.view(apart.dtype), other.raw.view(apart.dtype), out=apart)
    return max(int(apart.max()), -int(apart.min()))


def _ulps(one: Values, other: Values) -> int:
    """Return the largest distance in representable numbers; 0 for other dtypes."""
    kind = _ORDERED.get(one.dtype)
    if kind is None or one.dtype != other.dtype or not len(one.raw):
        return 0
    a, b = (_ordered(values.raw.view(kind)) for values in (one, other))
    return int((np.maximum(a, b) - np.minimum(a, b)).max())


def _ordered(bits: Raw) -> Raw:
    """Map the bits of floating numbers to unsigned integers in the numbers' own order.

    A negative number's magnitude bits are turned over; -0 and 0 become the same integer.
    """
    width = bits.itemsize * 8
    mask = bits >> (width - 1)
    signed = (bits ^ (mask & np.iinfo(bits.dtype).max)) - mask
    unsigned: Raw = signed.view(f"u{bits.itemsize}")
    turned: Raw = unsigned ^ unsigned.dtype.type(1 << (width - 1))
    return turned


@dataclass(frozen=True, slots=True)
class Rearranged:
    """A candidate whose axes are permuted, and how it differs once they are put back."""

    axes: tuple[int, ...]
    difference: ExactDifference


def rearranged(reference: Values, candidate: Values, limit: float) -> Rearranged | None:
    """Find an order of the candidate's axes in which it agrees with the reference.

    Args:
        limit: relative error up to which both agree.

    Returns:
        The first such order other than the present one; None where there is none.
    """
    if reference.raw.ndim != candidate.raw.ndim or not 2 <= reference.raw.ndim <= _MAX_AXES:
        return None
    for axes in permutations(range(candidate.raw.ndim)):
        turned = candidate.raw.transpose(axes)
        if axes == tuple(range(len(axes))) or turned.shape != reference.raw.shape:
            continue
        found = exact_difference(reference, Values(candidate.dtype, turned))
        if found.relative <= limit:
            return Rearranged(axes, found)
    return None


def merged(parts: Iterable[ExactDifference]) -> ExactDifference:
    """Add the differences of several parts up."""
    return reduce(ExactDifference.added, parts, ExactDifference())
