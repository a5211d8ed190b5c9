"""What the shape of a difference says about its likely cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from align.layers.along import Direction, along
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
    DTYPE = "dtype"
    BIAS = "bias"
    WHOLE_FACTOR = "whole factor"
    SCALED = "scaled"
    ONE_SHARD = "one shard"
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
_NEAR_SHARE = 0.3
_WHOLE = 5e-3
_ALIKE = 0.5


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
        whole = bool(found.gain) and (_is_whole(found.gain) or _is_whole(1 / found.gain))
        return Cause(Pattern.WHOLE_FACTOR if whole else Pattern.SCALED, found.gain)
    if reference.dtype != candidate.dtype:
        return Cause(Pattern.DTYPE)
    ranks = missing_ranks(compared)
    if ranks is not None:
        return Cause(Pattern.ONE_SHARD, 1 / ranks)
    if _is_bfloat16(compared):
        return Cause(Pattern.BFLOAT16)
    return Cause(Pattern.OTHER)


def missing_ranks(compared: Compared) -> int | None:
    """Return over how many ranks a sum was not taken, None where it does not look like that.

    One of k independent parts of equal size has 1 / k of the sum's energy, and as much of its
    product with the sum.
    """
    reference, candidate, found = compared.reference, compared.candidate, compared.difference
    if not reference.l2:
        return None
    energy = (candidate.l2 / reference.l2) ** 2
    for ranks in (2, 4, 8, 16):
        near = (abs(each * ranks - 1) < _NEAR_SHARE for each in (energy, found.gain))
        if all(near):
            return ranks
    return None


def _is_whole(factor: float) -> bool:
    return factor > 1.5 and abs(factor - round(factor)) < _WHOLE * factor


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


def scores_factor(compared: Sequence[Compared], departure: Compared) -> tuple[str, float] | None:
    """Recognise scaled attention scores: gradients of q and k carry a factor, that of v does not.

    Returns:
        The attention module and the factor, or None.
    """
    module, _, name = departure.reference.name.rpartition(".")
    gains = {}
    for each in compared:
        record = each.reference
        found = along(record, each.candidate, each.difference.relative, Direction.GAIN)
        if record.name.rpartition(".")[0] == module and found is not None:
            gains[record.name.rpartition(".")[2]] = found.size
    if name not in ("q_proj", "k_proj") or not {"q_proj", "k_proj", "v_proj"} <= gains.keys():
        return None
    q, k, v = (gains[f"{letter}_proj"] for letter in "qkv")
    largest = max(abs(q), abs(k))
    if q * k <= 0 or abs(q - k) > _ALIKE * largest or abs(v) > _ALIKE * largest:
        return None
    return module, 1 + (q + k) / 2
