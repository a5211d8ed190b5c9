"""Quantities that vary around 0, such as the policy loss: how far they swing on each side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from align.curves.bootstrap import CONFIDENCE
from align.curves.diverge import smaller_of_two, testable
from align.curves.noise import FAMILY_ALPHA, holm, standard_error, t_quantile
from align.curves.pair import FloatArray, PairedMetric
from align.curves.shift import LARGE_FACTOR
from align.frameworks.vocabulary import MetricKind

_ROUNDING = 2.0**-20  # one float32 ulp of a log-probability near -16: smaller values are all alike


@dataclass(frozen=True, slots=True)
class Amplitude:
    """A metric whose typical size (geometric mean of |value|) differs by a factor.

    Args:
        ratio, low, high: candidate's over reference's, with its 95 % interval.
        p: probability of such a ratio by chance, adjusted for the metrics tested with it.
    """

    metric: PairedMetric
    reference: float
    candidate: float
    ratio: float
    low: float
    high: float
    p: float


def find_amplitudes(metrics: Iterable[PairedMetric]) -> Iterator[Amplitude]:
    """Yield the signed metrics whose swing differs by a factor sqrt(2) or more, beyond chance.

    A mean near 0 says nothing about a factor in front of the loss; log |value| does, and is tested
    like a log ratio, allowing for autocorrelation and for all tests (Holm). A test of variances
    needs fewer steps (two in five), but trusts the tails to be normal.

    Measured over 200 clean pairs of three such metrics: none at 500 steps, 7 % at 30 of
    autocorrelation 0.8. A doubling is found at 200 steps and more, in half of the pairs at 58.
    """
    signed = [m for m in testable(metrics) if m.meaning.kind is MetricKind.SIGNED]
    sizes = [(_log_size(m.reference, m), _log_size(m.candidate, m)) for m in signed]
    ratios = [theirs - ours for ours, theirs in sizes]
    for metric, (ours, theirs), ratio, p in zip(
        signed, sizes, ratios, holm([smaller_of_two(r) for r in ratios]), strict=True
    ):
        error, freedom = standard_error(ratio)
        mean, reach = float(ratio.mean()), t_quantile(CONFIDENCE, freedom) * error
        if p <= FAMILY_ALPHA.value and abs(mean) >= math.log(LARGE_FACTOR.value):
            means = (float(ours.mean()), float(theirs.mean()), mean, mean - reach, mean + reach)
            reference, candidate, factor, low, high = map(math.exp, means)
            yield Amplitude(metric, reference, candidate, factor, low, high, p)


def _log_size(values: FloatArray, metric: PairedMetric) -> FloatArray:
    """Return log |value|; what rounding or printing cannot tell from 0 counts as equal."""
    least = np.maximum(metric.resolution, _ROUNDING)
    size: FloatArray = np.log(np.maximum(np.abs(values), least))
    return size
