"""Sums over two tensors in one pass, compiled by numba (the extra ``fast``).

NumPy reads its buffers once for every sum; here each number is read once, and all sums grow in
registers. No lock of the interpreter is held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.extending import overload

Sums = tuple[float, float, float, float, float, float]
Ulps = tuple[int, int, int]


def _number(element: Any) -> Any:
    """Return an element as float64; one of 16 unsigned bits is a bfloat16 number."""
    raise NotImplementedError  # compiled code alone calls it


@overload(_number, strict=False)  # lambdas have no annotations
def _compiled_number(element: Any) -> Any:
    if element is numba.types.uint16:
        return lambda element: np.float64(
            np.uint32(np.uint32(element) << np.uint32(16)).view(np.float32)
        )
    return lambda element: np.float64(element)


def _sums(one: Any, other: Any, tolerance: float) -> Sums:
    """Return Σ a², Σ b², Σ ab, Σ (b - a)², max |b - a| and how many exceed tolerance · |a|.

    Args:
        one, other: numbers of one dtype, bfloat16 as unsigned bits; computed in float64.

    Returns:
        With a fourth sum that is not finite where a number is NaN or infinite.
    """
    own = theirs = product = square = largest = beyond = 0.0
    for i in range(len(one)):
        a, b = _number(one[i]), _number(other[i])
        error = b - a
        own += a * a
        theirs += b * b
        product += a * b
        square += error * error
        error = abs(error)
        largest = error if error > largest else largest  # a third faster than max()
        beyond += 1.0 if error > tolerance * abs(a) else 0.0
    return own, theirs, product, square, largest, beyond


def _ulps(one: Any, other: Any, lowest: int) -> Ulps:
    """Return the largest distance in representable numbers, unequal numbers and changes of sign.

    Args:
        one, other: the bits of floating numbers as signed integers.
        lowest: the least such integer, which are the bits of -0.
    """
    largest: Any = 0
    unequal: Any = 0
    flips: Any = 0
    for i in range(len(one)):
        a, b = np.int64(one[i]), np.int64(other[i])
        a = a if a >= 0 else lowest - a
        b = b if b >= 0 else lowest - b
        largest = max(largest, abs(a - b))
        unequal += a != b
        flips += (a < 0 < b) or (b < 0 < a)
    return largest, unequal, flips


def _compiled(function: Any, **options: Any) -> Any:
    """Compile at the first call; machine code is kept where a folder for it can be written."""
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # numba found no such folder
        return numba.njit(function, **options)


sums: Callable[[Any, Any, float], Sums] = _compiled(
    _sums,
    fastmath={"reassoc", "contract", "nsz"},  # a NaN stays one
)
ulps: Callable[[Any, Any, int], Ulps] = _compiled(_ulps)
