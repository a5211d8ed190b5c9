"""What the shape of a difference says about its likely cause."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from align.layers.floor import UNIT_ROUNDOFF
from align.layers.measure import Difference, coefficient
from align.layers.walk import Compared
from dumps.store.tensor_records import Phase, TensorRecord

if TYPE_CHECKING:
    from dumps.store.tensor_records import Sketch


class Pattern(Enum):
    """Shapes of a difference, the most telling first."""

    NOT_FINITE = "not finite"
    PERMUTED = "permuted"
    BIAS = "bias"
    SCALED = "scaled"
    BFLOAT16 = "bfloat16"
    OTHER = "other"


class Place(Enum):
    """Kinds of modules, by what can go wrong in them."""

    ATTENTION = "attention"
    NORM = "norm"
    ROUTER = "router"
    ROTARY = "rotary"
    EMBEDDING = "embedding"
    LINEAR = "linear"
    OTHER = "other"


_PLACES = (
    (Place.ATTENTION, ("*.o_proj", "*.linear_proj", "*.core_attention", "*.self_attn")),
    (Place.NORM, ("*norm", "*norm?", "*layernorm*")),
    (Place.ROUTER, ("*.gate", "*.router")),
    (Place.ROTARY, ("*rotary*",)),
    (Place.EMBEDDING, ("*embed*",)),
    (Place.LINEAR, ("*_proj", "*lm_head", "*.linear_*", "*output_layer")),
)
_SAME_VALUES = 1e-5
_ALMOST_ALL = 0.9
_ALIGNED = 0.95


@dataclass(frozen=True, slots=True)
class Cause:
    """The shape of a difference, and the factor where it is one."""

    pattern: Pattern
    factor: float = 1.0


def place_of(compared: Compared) -> Place:
    """Say what kind of module an address is; the input of an output projection is attention."""
    name, phase = compared.reference.name, compared.reference.phase
    for place, patterns in _PLACES:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            closes = place is Place.ATTENTION and phase != Phase.INPUT and name.endswith("_proj")
            return Place.LINEAR if closes else place
    return Place.OTHER


def cause_of(compared: Compared, bias: TensorRecord | None = None) -> Cause:
    """Recognise the shape of a difference.

    Args:
        bias: the module's bias, where it has one.
    """
    reference, candidate, found = compared.reference, compared.candidate, compared.difference
    if not (reference.is_finite and candidate.is_finite):
        return Cause(Pattern.NOT_FINITE)
    if same_values(reference, candidate) and found.relative > 0.1:
        return Cause(Pattern.PERMUTED)
    if bias is not None and is_bias(candidate.sketch - reference.sketch, bias.sketch):
        return Cause(Pattern.BIAS)
    if is_scaled(found):
        return Cause(Pattern.SCALED, found.gain)
    if _is_bfloat16(compared):
        return Cause(Pattern.BFLOAT16)
    return Cause(Pattern.OTHER)


def is_scaled(found: Difference) -> bool:
    """Tell whether one factor explains nine tenths of a difference."""
    return found.residual < (1 - _ALMOST_ALL) * found.relative


def same_values(*records: TensorRecord) -> bool:
    """Tell whether two tensors hold the same values, in whatever order, by their statistics."""
    one, other = records
    pairs = ((one.l2, other.l2), (one.minimum, other.minimum), (one.maximum, other.maximum))
    sums = abs(one.total - other.total) <= _SAME_VALUES * one.l2 * max(1, one.num_elements) ** 0.5
    close = all(abs(a - b) <= _SAME_VALUES * max(abs(a), abs(b)) for a, b in pairs)
    return sums and close and one.num_elements == other.num_elements


def is_bias(difference: Sketch, bias: Sketch) -> bool:
    """Tell whether the same multiple of a bias is added at every token.

    A row vector sketches to an outer product, so the difference has one singular value, and its
    right vector is the bias's own.
    """
    _left, sizes, right = np.linalg.svd(difference)
    own = np.linalg.svd(bias)[2][0]
    one_vector = sizes[0] ** 2 > _ALMOST_ALL * float((sizes**2).sum())
    return bool(one_vector and abs(float(right[0] @ own)) > _ALIGNED)


def explained_by(of: Sketch, on: Sketch) -> tuple[float, bool]:
    """Regress one sketch on another; say whether that explains nine tenths of it, by norm."""
    factor, left = coefficient(of, on)
    return factor, left < 1 - _ALMOST_ALL


def _is_bfloat16(compared: Compared) -> bool:
    """Tell whether a float32 tensor is off by about as much as one rounding to bfloat16."""
    if any(record.dtype != "float32" for record in (compared.reference, compared.candidate)):
        return False
    unit = UNIT_ROUNDOFF["bfloat16"]
    return unit / 32 < compared.difference.relative < unit
