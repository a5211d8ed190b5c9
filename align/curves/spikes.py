"""Single steps that stand far out of their neighbourhood, counted on each side."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.diverge import testable
from align.curves.pair import BoolArray, FloatArray, PairedMetric, Pairing
from align.curves.shift import uses_ratio
from align.curves.shift_findings import dotted

FAR_OUT = Threshold(
    10.0, source="a normal value lies 10 sigma out once in 1e23 steps; sampled means come close"
)
_MAD_TO_SIGMA = 1.4826
_WINDOW = 9
_FARTHER = 3.0


def outlyingness(values: FloatArray) -> FloatArray:
    """Return how many robust standard deviations each step lies from the steps around it.

    Args:
        values: finite float64 [n].

    Returns:
        float64 [n]: distance from the median of 9 steps, over 1.4826 times the median distance or
        step, whichever is larger; 0 where that is 0, and at the first and last 4 steps.
    """
    far = np.zeros(len(values))
    if len(values) <= _WINDOW:
        return far
    inner = slice(_WINDOW // 2, -(_WINDOW // 2))
    distance = np.abs(values[inner] - np.median(sliding_window_view(values, _WINDOW), axis=-1))
    steps = np.abs(np.diff(values))
    scale = _MAD_TO_SIGMA * max(float(np.median(distance)), float(np.median(steps)))
    if scale > 0:
        far[inner] = distance / scale
    return far


def spike_findings(pairing: Pairing) -> Iterator[Finding]:
    """Yield a note for each metric with steps 10 sigma out, and 3 times as far as the other run's.

    The other run shows how heavy the metric's own tails are.
    """
    for metric in testable(pairing.training):
        values = metric.reference, metric.candidate
        first, second = (outlyingness(np.log(v) if uses_ratio(metric) else v) for v in values)
        for side, ours, theirs in (("reference", first, second), ("candidate", second, first)):
            spikes = ours > max(FAR_OUT.value, _FARTHER * float(theirs.max()))
            if spikes.any():
                yield _finding(metric, side, spikes)


def _finding(metric: PairedMetric, side: str, spikes: BoolArray) -> Finding:
    steps = metric.steps[spikes]
    zh = "参考" if side == "reference" else "被测"
    shown_zh = "、".join(map(str, steps[:5])) + (" 等" if len(steps) > 5 else "")
    shown = ", ".join(map(str, steps[:5])) + (", …" if len(steps) > 5 else "")
    return Finding(
        id=f"curves.{dotted(metric.name)}.spikes",
        rung=Rung.CURVES,
        severity=Severity.INFO,
        title=Text(
            f"{metric.name} spikes at {len(steps)} of {len(metric)} steps of the {side} only "
            f"(step {shown})",
            f"{metric.name}：只有{zh}出现尖峰，"
            f"{len(metric)} 步中有 {len(steps)} 步（第 {shown_zh} 步）",
        ),
        reference=float(metric.reference[spikes][0]),
        candidate=float(metric.candidate[spikes][0]),
        evidence=metric.evidence(int(steps[0])),
        why=Text(
            "A spike is a step more than 10 robust standard deviations from the median of the 9 "
            "steps around it, and 3 times as far as any step of the other run. A few are ordinary.",
            "若某一步偏离前后 9 步的中位数超过 10 倍稳健标准差，"
            "并达到另一侧最大偏离的 3 倍以上，则称为尖峰。少数几个尖峰属正常。",
        ),
        fix=Text(
            "Look at the prompts and response lengths of these steps.",
            "查看这些步的 prompt 与回复长度。",
        ),
    )
