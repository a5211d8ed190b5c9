"""The same values in another order of steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.pair import PairedMetric, Pairing, is_exact
from align.curves.shift_findings import dotted

MIN_VALUES = Threshold(
    10, source="ten different values agree as a set only where they are the same"
)


def find_permuted(pairing: Pairing) -> Iterator[PairedMetric]:
    """Yield the metrics whose values are equal as multisets and not step by step.

    Ten different values at least. A value logged one step apart is in no other order.
    """
    for metric in pairing.training:
        finite = metric.finite_only()
        if is_permuted(finite):
            yield finite


def is_permuted(metric: PairedMetric) -> bool:
    """Tell whether the values are the same as multisets, and at most steps not as series."""
    if len(metric) < MIN_VALUES.value or metric.differs().mean() <= 0.5:
        return False
    ours, theirs = np.sort(metric.reference), np.sort(metric.candidate)
    if len(np.unique(ours)) < MIN_VALUES.value:
        return False
    size = np.maximum(np.abs(ours), np.abs(theirs))
    close = np.abs(ours - theirs) <= np.maximum(float(metric.resolution.max()), 2.0**-23 * size)
    return bool(close.all())


def permuted_findings(metric: PairedMetric, first_step: int) -> Iterator[Finding]:
    """Yield a warning with its symptom; an exact quantity has an error of its own."""
    if is_exact(metric.name):
        return
    at = int(np.argmax(metric.differs()))
    step = int(metric.steps[at])
    yield Finding(
        id=f"curves.{dotted(metric.name)}.permuted",
        rung=Rung.CURVES,
        severity=Severity.WARNING,
        title=Text(
            f"{metric.name} takes the same {len(metric)} values on both sides in another order, "
            f"from step {step} on",
            f"{metric.name}：两侧的 {len(metric)} 个值完全相同，但从第 {step} 步起次序不同",
        ),
        reference=float(metric.reference[at]),
        candidate=float(metric.candidate[at]),
        evidence=metric.evidence(step),
        why=PERMUTED,
        fix=Text(
            "Compare the row order (align data diff): shuffle, seed, sampler, number of workers.",
            "比较数据行的次序（align data diff）：打乱方式、随机种子、采样器、worker 数。",
        ),
        symptom=metric.symptom(step, first_step, noise_sized=False),
    )


PERMUTED = Text(
    "The same values in another order: the batches are the same, taken in another order of steps.",
    "数值相同而次序不同：各步的批次相同，只是先后次序不同。",
)
