"""Acceptance as the field states it: reward curve within 4 %, convergence within 5 %.

Over min(24 h, 500 steps). Point by point, two statistically identical curves fail 4 % (mean
relative error 11 % at sigma 0.02), so both errors are taken of averages, with the average and
the denominator stated, and an interval decides: fail only if all of it is above the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.bootstrap import block_length, interval, mean_interval, resample
from align.curves.criterion import MIN_STEPS, SURE, Criterion, Outcome, criterion_of, too_short
from align.curves.pair import PairedMetric, Pairing
from align.curves.shift import relative_to
from align.curves.smooth import smooth, window_for

ABSOLUTE_LIMIT = Threshold(
    0.04, source="field acceptance: reward curve absolute error <= 4 % over min(24 h, 500 steps)"
)
CONVERGENCE_LIMIT = Threshold(
    0.05, source="field acceptance: convergence error <= 5 % over min(24 h, 500 steps)"
)
HORIZON_STEPS = Threshold(500, source="field acceptance: min(24 h, 500 steps)")
HORIZON_S = Threshold(24 * 3600.0, source="field acceptance: min(24 h, 500 steps)")
MIN_FINAL_STEPS = 20
REWARDS = ("critic/score/mean", "critic/rewards/mean")
STEP_TIME = "timing_s/step"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Both criteria over the steps that were judged."""

    metric: PairedMetric  # cut to the horizon, finite steps only
    num_steps: int
    complete: bool  # the horizon of 24 h or 500 steps was reached
    criteria: tuple[Criterion, ...]

    @property
    def outcomes(self) -> frozenset[Outcome]:
        """The outcomes of all criteria."""
        return frozenset(criterion.outcome for criterion in self.criteria)


def accept(pairing: Pairing) -> Acceptance | None:
    """Judge the reward curve; None where the two runs have no reward curve in common."""
    found = (pairing.get(name) for name in REWARDS)
    reward = next((metric for metric in found if metric is not None), None)
    if reward is None:
        return None
    horizon, complete = horizon_of(pairing, reward)
    judged = reward.where(np.arange(len(reward)) < horizon).finite_only()
    criteria = (absolute_error(judged, reward_span(pairing)), convergence_error(judged))
    return Acceptance(judged, len(judged), complete, criteria)


def final_steps(num_steps: int) -> int:
    """Return how many last steps stand for the converged level: a tenth, 20 at least."""
    return max(MIN_FINAL_STEPS, num_steps // 10)


def horizon_of(
    pairing: Pairing,
    reward: PairedMetric,
    num_steps: float = HORIZON_STEPS.value,
    limit_s: float = HORIZON_S.value,
) -> tuple[int, bool]:
    """Return how many steps lie within 24 h of the slower run and 500 steps, and if all are there.

    Step times are used where both runs recorded them.
    """
    limit = int(num_steps)
    time = pairing.get(STEP_TIME)
    if time is not None:
        slower = np.maximum(np.nancumsum(time.reference), np.nancumsum(time.candidate))
        within = int((slower <= limit_s).sum())
        if within < len(time):
            limit = min(limit, within)
    return limit, len(reward) >= limit


def reward_span(pairing: Pairing) -> float | None:
    """Return the width of the reward scale: best minus worst response of a typical step."""
    for name in REWARDS:
        extremes = [pairing.get(name.replace("mean", end)) for end in ("max", "min")]
        if extremes[0] is not None and extremes[1] is not None:
            span = float(np.nanmedian(extremes[0].reference) - np.nanmedian(extremes[1].reference))
            if np.isfinite(span) and span > 0:
                return span
    return None


def absolute_error(
    reward: PairedMetric, span: float | None, limit: Threshold = ABSOLUTE_LIMIT
) -> Criterion:
    """Judge the mean absolute difference of the smoothed curves.

    Args:
        reward: at steps where both sides are numbers.
        span: the denominator; the reference's level where None.
    """
    if len(reward) < MIN_STEPS.value:
        return too_short("absolute_error", reward.name, reward, limit)
    window = window_for(len(reward))
    difference = reward.candidate - reward.reference
    length = max(window, block_length(difference))
    scale = span or relative_to(float(reward.reference[-window:].mean()), reward.reference)
    drawn = np.abs(smooth(resample(difference, length), window)).mean(axis=1)
    return criterion_of(
        "absolute_error",
        reward,
        error=float(np.abs(smooth(difference, window)).mean()),
        bounds=interval(drawn),
        sure=interval(drawn, SURE.value),
        scale=scale,
        limit=limit,
        formula=_absolute_formula(len(reward), window, length, _SPAN if span else _LEVEL),
    )


def convergence_error(reward: PairedMetric, limit: Threshold = CONVERGENCE_LIMIT) -> Criterion:
    """Judge the difference of the converged levels, the means of the last steps."""
    if len(reward) < MIN_STEPS.value:
        return too_short("convergence_error", reward.name, reward, limit)
    final = reward.where(np.arange(len(reward)) >= len(reward) - final_steps(len(reward)))
    difference = final.candidate - final.reference
    length = block_length(difference)
    return criterion_of(
        "convergence_error",
        final,
        error=abs(float(difference.mean())),
        bounds=_of_size(mean_interval(difference, length)),
        sure=_of_size(mean_interval(difference, length, SURE.value)),
        scale=relative_to(float(final.reference.mean()), reward.reference),
        limit=limit,
        formula=_convergence_formula(len(final), length),
    )


def _of_size(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the interval of a difference's size."""
    low, high = bounds
    return max(low, -high, 0.0), max(abs(low), abs(high))


_SPAN = Text(
    "the width of the reward scale (median over steps of the largest reward minus that of the "
    "smallest)",
    "奖励的取值跨度（各步最大奖励的中位数减去各步最小奖励的中位数）",
)
_LEVEL = Text(
    "the reference's final level, or the range of its smoothed curve where the level is less than "
    "half of that",
    "参考的最终水平（若不足其平滑曲线极差的一半，则改用极差）",
)


def _absolute_formula(num_steps: int, window: int, length: int, scale: Text) -> Text:
    return Text(
        f"mean over {num_steps} steps of |candidate - reference|, each averaged over {window} "
        f"steps, divided by {scale.en}; 95 % interval: moving-block bootstrap of the paired "
        f"differences, {length} steps a block",
        f"两侧各取 {window} 步滑动平均，对 {num_steps} 步的 |被测 − 参考| 求均值，"
        f"再除以{scale.zh}；"
        f"95% 区间：对配对差值做移动块自助法，块长 {length} 步",
    )


def _convergence_formula(num_steps: int, length: int) -> Text:
    return Text(
        f"|mean candidate - mean reference| over the last {num_steps} steps, divided by "
        f"{_LEVEL.en}; 95 % interval: moving-block bootstrap of the paired differences, {length} "
        "steps a block, or Student's t over the effective number of steps where that is wider",
        f"最后 {num_steps} 步的 |被测均值 − 参考均值|，再除以{_LEVEL.zh}；"
        f"95% 区间：对配对差值做移动块自助法，块长 {length} 步；"
        "若按有效步数得到的 t 区间更宽，则取后者",
    )
