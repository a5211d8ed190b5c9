"""How far two tensors of the same name are from each other, block by block in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

_EXPLAINED = 0.9
_BLOCK = 1 << 22  # elements taken to float64 at a time: 32 MiB
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_COARSE = (torch.bfloat16, torch.float16)


class Relation(str, Enum):
    """What one tensor is to the other."""

    EQUAL = "equal"  # bit for bit
    ROUNDED = "rounded"  # the same numbers, one of them rounded to a coarser dtype
    SCALED = "scaled"
    TRANSPOSED = "transposed"
    PERMUTED = "permuted"
    OTHER_TENSOR = "other_tensor"  # that of another name
    SHAPE = "shape"
    NONFINITE = "nonfinite"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Distance:
    """Sums over all elements, in float64.

    Args:
        rel_l2: ||candidate - reference|| / ||reference||.
        gain: least-squares factor of the candidate on the reference.
        residual: ||candidate - gain · reference|| / ||candidate||.
        max_abs: largest absolute difference.
        num_nonfinite: NaN or infinite, reference then candidate.
    """

    rel_l2: float
    gain: float
    residual: float
    max_abs: float
    num_nonfinite: tuple[int, int]


def relation(reference: Tensor, candidate: Tensor) -> Relation:
    """Tell equal and rounded tensors from others, and scaled and transposed ones among these."""
    if reference.shape != candidate.shape:
        is_turned = reference.dim() == 2 and reference.shape == candidate.shape[::-1]
        same = is_turned and same_numbers(reference.T.contiguous(), candidate)
        return Relation.TRANSPOSED if same else Relation.SHAPE
    if reference.dtype == candidate.dtype and equal_bits(reference, candidate):
        return Relation.EQUAL
    if same_numbers(reference, candidate) or _is_rounding(reference, candidate):
        return Relation.ROUNDED
    is_square = reference.dim() == 2 and reference.shape[0] == reference.shape[1]
    if is_square and same_numbers(reference.T.contiguous(), candidate):
        return Relation.TRANSPOSED
    return Relation.DIFFERENT


def equal_bits(first: Tensor, second: Tensor) -> bool:
    """Tell whether two tensors of one dtype and shape agree in every bit, NaN included."""
    return torch.equal(as_bits(first), as_bits(second))


def as_bits(tensor: Tensor) -> Tensor:
    """Return the bits of each number as an integer."""
    return tensor.contiguous().view(_BITS[tensor.element_size()])


def coarser(first: Tensor, second: Tensor) -> torch.dtype:
    """Return the dtype with fewer digits."""
    return max(first.dtype, second.dtype, key=precision)


def precision(dtype: torch.dtype) -> float:
    """Return the distance from 1 to the next number."""
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def same_numbers(first: Tensor, second: Tensor) -> bool:
    """Tell whether both are the same after rounding to the coarser of their dtypes."""
    if first.shape != second.shape or not _are_floats(first, second):
        return (
            first.dtype == second.dtype
            and first.shape == second.shape
            and equal_bits(first, second)
        )
    dtype = coarser(first, second)
    return equal_bits(first.to(dtype), second.to(dtype))


def _is_rounding(first: Tensor, second: Tensor) -> bool:
    """Tell whether one is the other after a passage through bfloat16 or float16."""
    if first.dtype != second.dtype or not _are_floats(first, second):
        return False
    return any(
        equal_bits(a.to(coarse).to(a.dtype), b)
        for a, b in ((first, second), (second, first))
        for coarse in _COARSE
        if precision(coarse) > precision(a.dtype)
    )


def _are_floats(first: Tensor, second: Tensor) -> bool:
    return first.dtype.is_floating_point and second.dtype.is_floating_point


def distance(reference: Tensor, candidate: Tensor) -> Distance:
    """Measure two tensors of one shape; numbers that are not finite count apart."""
    ref2 = cand2 = both = diff2 = max_abs = 0.0
    bad = [0, 0]
    for a, b in zip(_blocks(reference), _blocks(candidate), strict=True):
        is_finite = a.isfinite() & b.isfinite()
        bad[0] += int((~a.isfinite()).sum())
        bad[1] += int((~b.isfinite()).sum())
        a, b = a.where(is_finite, 0), b.where(is_finite, 0)
        delta = b - a
        ref2 += float(a @ a)
        cand2 += float(b @ b)
        both += float(a @ b)
        diff2 += float(delta @ delta)
        max_abs = max(max_abs, float(delta.abs().max()))
    gain = both / ref2 if ref2 else 0.0
    left = max(0.0, cand2 - gain * both)
    return Distance(
        rel_l2=math.sqrt(diff2 / ref2) if ref2 else (math.inf if diff2 else 0.0),
        gain=gain,
        residual=math.sqrt(left / cand2) if cand2 else 0.0,
        max_abs=max_abs,
        num_nonfinite=(bad[0], bad[1]),
    )


def is_scaled(found: Distance, dtype: torch.dtype) -> bool:
    """Tell a constant factor: it explains the difference, and leaves no more than rounding over.

    Rounding to nearest leaves at most half a unit in every element, so at most that in L2; the
    limit is one unit. The sums' cancellation in float64 hides what is below 1e-7. A factor that
    explains less than nine tenths of the squared difference is a by-product of other changes.
    """
    is_explained = (found.gain - 1) ** 2 >= _EXPLAINED * found.rel_l2**2
    return found.gain != 0 and is_explained and found.residual <= max(precision(dtype), 1e-7)


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), _BLOCK):
        yield flat[start : start + _BLOCK].double()
