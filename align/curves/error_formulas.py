"""Errors that other people's acceptance rules are made of, beside the two of `accept.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.accept import final_steps
from align.curves.bootstrap import block_length, interval, mean_interval, resample
from align.curves.criterion import (
    MIN_STEPS,
    Criterion,
    Outcome,
    criterion_of,
    detectable_error,
    too_short,
)
from align.curves.pair import FloatArray, PairedMetric

MOST_FAILING_STEPS = Threshold(
    50, source="Megatron-LM functional tests: min(max(N // 100, 1), 50) steps may fail"
)


def mean_error(metric: PairedMetric, limit: Threshold) -> Criterion:
    """Judge the mean over all steps of |candidate - reference|, over the mean of |reference|."""
    if len(metric) < MIN_STEPS.value:
        return too_short("mean_error", metric.name, metric, limit)
    size = np.abs(metric.candidate - metric.reference)
    length = block_length(size)
    return criterion_of(
        "mean_error",
        metric,
        error=float(size.mean()),
        bounds=interval(resample(size, length).mean(axis=1)),
        scale=float(np.abs(metric.reference).mean()),
        limit=limit,
        formula=Text(
            f"mean over {len(metric)} steps of |candidate - reference|, step by step without "
            "smoothing, divided by the mean of |reference|; 95 % interval: moving-block bootstrap, "
            f"{length} steps a block",
            f"对 {len(metric)} 步逐步（不平滑）的 |被测 − 参考| 求均值，再除以 |参考| 的均值；"
            f"95% 区间：移动块自助法，块长 {length} 步",
        ),
    )


def failing_steps(metric: PairedMetric, tolerance: float) -> Criterion:
    """Count the steps that differ by more than ``tolerance`` of the reference's value.

    Megatron-LM's rule: max(N // 100, 1) of N steps may, 50 at most. A count has no interval.
    """
    allowed = allowed_failing_steps(len(metric))
    limit = Threshold(float(allowed), source=MOST_FAILING_STEPS.source)
    if not len(metric):
        return too_short("failing_steps", metric.name, metric, limit)
    failing = ~np.isclose(metric.candidate, metric.reference, rtol=tolerance, atol=0)
    num = float(failing.sum())
    return Criterion(
        name="failing_steps",
        subject=metric.name,
        reference=float(metric.reference.mean()),
        candidate=float(metric.candidate.mean()),
        error=num,
        low=num,
        high=num,
        scale=1.0,
        limit=limit,
        outcome=Outcome.PASS if num <= allowed else Outcome.FAIL,
        formula=Text(
            f"number of the {len(metric)} steps with |candidate - reference| > {tolerance:g} "
            f"|reference|; {allowed} may be (max(N // 100, 1), 50 at most)",
            f"{len(metric)} 步中 |被测 − 参考| > {tolerance:g}·|参考| 的步数；"
            f"允许 {allowed} 步（max(N // 100, 1)，至多 50）",
        ),
        num_steps=len(metric),
    )


def allowed_failing_steps(num_steps: int) -> int:
    """Return how many of so many steps may fail."""
    return min(max(num_steps // 100, 1), int(MOST_FAILING_STEPS.value))


def seed_band(metric: PairedMetric, repeats: Sequence[FloatArray], least: Threshold) -> Criterion:
    """Judge how far the candidate's final level lies outside the reference runs' final levels.

    Args:
        metric: reference and candidate at common steps.
        repeats: [n] each, the same metric of further runs of the reference at these steps.
        least: how many runs of the reference make a band.
    """
    limit = Threshold(0.0, source="acceptance by seed band: the level lies among the reference's")
    if len(metric) < MIN_STEPS.value:
        return too_short("seed_band", metric.name, metric, limit)
    num = final_steps(len(metric))
    levels = [float(v[-num:].mean()) for v in (metric.reference, *repeats)]
    low, high = min(levels), max(levels)
    candidate = metric.candidate[-num:]
    length = block_length(candidate)
    bounds = mean_interval(candidate, length)
    outside = [max(low - v, v - high, 0.0) for v in (float(candidate.mean()), *bounds)]
    crossing = bounds[0] <= high and bounds[1] >= low
    outcome = Outcome.PASS if outside[0] == 0 else Outcome.UNDECIDED if crossing else Outcome.FAIL
    return Criterion(
        name="seed_band",
        subject=metric.name,
        reference=float(np.mean(levels)),
        candidate=float(candidate.mean()),
        error=outside[0],
        low=0.0 if crossing else min(outside[1:]),
        high=max(outside[1:]),
        scale=1.0,
        limit=limit,
        outcome=outcome if len(levels) >= least.value else Outcome.UNDECIDED,
        formula=_band_formula(num, low, high, len(levels), least),
        num_steps=num,
        detectable=detectable_error(candidate - metric.reference[-num:], 1.0),
    )


def _band_formula(num: int, low: float, high: float, runs: int, least: Threshold) -> Text:
    band = f"{low:.4g}..{high:.4g}"
    if runs < least.value:
        return Text(
            f"not judged: {runs} runs of the reference, {least.value:.0f} make a band "
            f"({least.source}); add --repeat RUN",
            f"未判定：参考只有 {runs} 次运行，至少需要 {least.value:.0f} 次才能构成区间；"
            "请添加 --repeat RUN",
        )
    return Text(
        f"distance of the candidate's mean over the last {num} steps from the band {band} of "
        f"{runs} reference runs; 95 % interval of the candidate's mean: moving-block bootstrap",
        f"被测最后 {num} 步均值到 {runs} 次参考运行的区间 {band} 的距离；"
        "被测均值的 95% 区间：移动块自助法",
    )
