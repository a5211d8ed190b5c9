"""How far two critics' values are apart, and how far rounding lets them be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from align.core.threshold import Threshold
from align.rollout.trainer_pair import TrainerPair
from dumps.readers.safetensors_numbers import are_bfloat16

SAME_VALUES = Threshold(1e-3, "what gradients accumulate in float32 over another order, times ten")
NARROW = Threshold(2.0**-6, "four bfloat16 roundings (2^-8 each) of values kept in it")
_SAME_ROWS = Threshold(0.05, "of the spread: other rows of a batch are apart by all of it")
TIMES = 10  # of what the values, or the policies' log_probs, differ by already
Array = npt.NDArray[np.float64]


def relative(
    one: npt.NDArray[np.generic], other: npt.NDArray[np.generic], pair: TrainerPair
) -> float:
    """‖other - one‖ over the spread of one, over counting tokens."""
    mine, its = _counting(one, other, pair)
    spread = float(np.linalg.norm(mine - mine.mean()))
    apart = float(np.linalg.norm(mine - its))
    return apart / spread if spread else (0.0 if apart == 0 else np.inf)


def limit_of(
    one: npt.NDArray[np.generic], other: npt.NDArray[np.generic], pair: TrainerPair
) -> float:
    """Return how far values may be apart: as the policies' log_probs are, ten times."""
    policies = pair.both("old_log_probs")
    noise = 0.0 if policies is None else relative(*policies, pair)
    narrow = all(are_bfloat16(values) for values in (one, other))
    rounding = rounding_of(_counting(one, other, pair)[0]) if narrow else 0.0
    return max(SAME_VALUES.value, TIMES * noise, rounding)


def ratio(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), 1e-30)


def same_targets(pair: TrainerPair) -> bool:
    both = pair.both("returns")
    return both is not None and relative(*both, pair) <= _SAME_ROWS.value


def same_multiset(one: Tensor, other: Tensor) -> bool:
    apart = (one.sort().values - other.sort().values).norm()
    return bool(apart <= _SAME_ROWS.value * (one - one.mean()).norm())


def rounding_of(values: Array) -> float:
    """Return what bfloat16 rounds off values, as a part of their spread."""
    spread = float(np.linalg.norm(values - values.mean()))
    return NARROW.value * float(np.linalg.norm(values)) / spread if spread else np.inf


def _counting(
    one: npt.NDArray[np.generic], other: npt.NDArray[np.generic], pair: TrainerPair
) -> tuple[Array, Array]:
    masks = pair.both("response_mask")
    here = np.ones(one.shape, bool) if masks is None else (masks[0] != 0) & (masks[1] != 0)
    return one[here].astype(np.float64), other[here].astype(np.float64)
