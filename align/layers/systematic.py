"""Factors and offsets that noise does not explain, from all steps and layers together.

Where noise was observed, each address has a standard error from the same module of all layers;
else from the other layers' same module in the pair itself, where there are enough. The line is
drawn over all addresses, so that many of them do not make a false one likely. A documented limit
catches what every layer has alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from align.core.threshold import Threshold
from align.layers.along import Along, Direction, along, least
from align.layers.false_discovery import RATE, critical_deviate, deviate
from align.layers.measure import Difference
from align.layers.noise import Key, Noise, Share, kind_of, share_of
from dumps.store.tensor_records import Phase, TensorRecord

Errors = Mapping[Key, Sequence[tuple[TensorRecord, TensorRecord, Difference]]]

_ENOUGH = 8
_SHARE = {
    Phase.GRADIENT: Threshold(0.6, "1.7 times the largest share on clean pairs of the harness"),
    Phase.FORWARD: Threshold(0.3, "twice the largest share on clean pairs of the harness"),
}
_ABOVE_BEFORE = 1.5
"""An address's deviate is its own only where it stands out from those before it."""


@dataclass(frozen=True, slots=True)
class Systematic:
    """An error that points one way.

    Args:
        size: the factor less 1, or the offset over the reference's root mean square; over steps.
        score: normal deviates, or the share of the error where no deviate is known.
        limit: of the score.
        num_samples: steps.
        is_statistical: whether the limit comes from observed spread.
    """

    direction: Direction
    size: float
    score: float
    limit: Threshold
    num_samples: int
    is_statistical: bool


@dataclass(frozen=True, slots=True)
class _Measured:
    key: Key
    direction: Direction
    size: float
    share: float
    count: int
    is_worth: bool
    deviate: float | None


def judged_systematic(errors: Errors, noise: Noise | None) -> dict[Key, Systematic]:
    """Return the addresses with a systematic error.

    Args:
        errors: by address, in the order of computation: one comparison a step.
    """
    measured = _measured(errors, noise)
    cut = critical_deviate([each.deviate for each in measured if each.deviate is not None])
    source = "the same module of other layers" if noise is None else noise.source
    limit = Threshold(
        cut, f"standard error from {source}; false discovery rate {RATE:g} over {len(measured)}"
    )
    found: dict[Key, Systematic] = {}
    before = {direction: 0.0 for direction in Direction}
    for each in measured:
        judged = _judged(each, limit, _ABOVE_BEFORE * before[each.direction])
        if each.deviate is not None:
            before[each.direction] = max(before[each.direction], each.deviate)
        if judged is not None and each.key not in found:
            found[each.key] = judged
    return found


def _judged(each: _Measured, limit: Threshold, explained: float) -> Systematic | None:
    if not each.is_worth:
        return None
    if each.deviate is not None and each.deviate > max(limit.value, explained):
        return Systematic(each.direction, each.size, each.deviate, limit, each.count, True)
    documented = _SHARE[Phase.GRADIENT if each.key[0] == Phase.GRADIENT else Phase.FORWARD]
    if abs(each.share) > documented.value:
        return Systematic(each.direction, each.size, abs(each.share), documented, each.count, False)
    return None


def _measured(errors: Errors, noise: Noise | None) -> list[_Measured]:
    found: dict[tuple[Key, Direction], list[Along]] = {}
    by_kind: dict[tuple[str, str, Direction], dict[Key, list[float]]] = defaultdict(dict)
    for key, comparisons in errors.items():
        own, other, _ = comparisons[0]
        if own.dtype != other.dtype:  # one side's rounding alone is no noise between two alike
            continue
        for direction in Direction:
            each = [along(a, b, d.relative, direction) for a, b, d in comparisons]
            known = [one for one in each if one is not None]
            if known:
                found[key, direction] = known
                by_kind[key[0], kind_of(key[1]), direction][key] = [one.share for one in known]
    measured = []
    for (key, direction), known in found.items():
        share = sum(one.share for one in known) / len(known)
        size = sum(one.size for one in known) / len(known)
        own, other, _ = errors[key][0]
        kind = key[0], kind_of(key[1]), direction
        seen = None if noise is None else noise.shares.get(kind)
        scale = seen or _scale(by_kind[kind], key)
        value = None
        if scale is not None and scale.rms > 0:
            value = deviate(share * math.sqrt(len(known)) / scale.rms, scale.num_samples)
        measured.append(
            _Measured(key, direction, size, share, len(known), abs(size) > least(own, other), value)
        )
    return measured


def _scale(by_address: Mapping[Key, Sequence[float]], key: Key) -> Share | None:
    others = [share for other, shares in by_address.items() if other != key for share in shares]
    return share_of(others) if len(others) >= _ENOUGH else None
