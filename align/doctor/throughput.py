"""Tokens a second and device, by the formula MindSpeed-RL and the Ascend guides use.

(mean response_length + mean prompt_length) · prompts a step · n / devices / seconds a step. verl's
``perf/throughput`` counts the same tokens, padding left out, so the two have to agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.core.metric import MetricLog, MetricSeries
from align.core.threshold import Threshold

DIES_PER_A3_CARD = 2
AGREES = Threshold(0.01, source="four printed decimals of lengths, seconds and rate of small runs")

_RESPONSE, _PROMPT = "response_length/mean", "prompt_length/mean"
_STEP = ("timing_s/step", "perf/time_per_step")
_LOGGED = "perf/throughput"


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What the formula needs besides the log; None where neither log nor configuration says it."""

    prompts: float | None  # a training step
    responses: float | None  # a prompt
    devices: float | None  # dies


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second and device (die).

    Args:
        computed: median over the steps after the first, None where a factor is not known.
        logged: the run's own figure over the same steps, None where it logs none.
        disagreement: largest relative difference of the two at one step.
        unknown: factors that are missing, as the formula names them.
    """

    computed: float | None
    logged: float | None
    disagreement: float | None
    num_steps: int
    unknown: tuple[str, ...] = ()

    @property
    def per_a3_card(self) -> float | None:
        """The same for a card of two dies."""
        best = self.computed if self.computed is not None else self.logged
        return None if best is None else best * DIES_PER_A3_CARD

    @property
    def agrees(self) -> bool | None:
        """Whether the formula gives what was logged; None where one of them is missing."""
        return None if self.disagreement is None else self.disagreement <= AGREES.value


def tokens_per_second(
    length: float, prompts: float, responses: float, devices: float, seconds: float
) -> float:
    """Return the rate for a mean length of prompt and response together, in tokens."""
    return length * prompts * responses / devices / seconds


def logged_shape(metrics: MetricLog) -> BatchShape:
    """Return the factors that MindSpeed-RL logs beside its rate."""
    return BatchShape(
        _constant(metrics.get("global_batch_size")),
        _constant(metrics.get("n_samples_per_prompt")),
        _constant(metrics.get("world_size")),
    )


def throughput(metrics: MetricLog, shape: BatchShape) -> Throughput | None:
    """Compute the rate step by step; None where a run logs neither lengths nor a rate."""
    seconds = next((s for name in _STEP if (s := metrics.get(name)) is not None), None)
    response, prompt = metrics.get(_RESPONSE), metrics.get(_PROMPT)
    logged = metrics.get(_LOGGED)
    factors = {
        "response_length/mean": response,
        "prompt_length/mean": prompt,
        "seconds a step": seconds,
        "prompts a step": shape.prompts,
        "responses a prompt": shape.responses,
        "number of devices": shape.devices,
    }
    unknown = tuple(
        name
        for name, value in factors.items()
        if value is None or (isinstance(value, float | int) and not value > 0)
    )
    if response is None or prompt is None or seconds is None or unknown:
        if logged is None:
            return None if seconds is None else Throughput(None, None, None, 0, unknown)
        return Throughput(None, _median(logged), None, _count(logged), unknown)
    assert shape.prompts and shape.responses and shape.devices  # else they are in `unknown`
    steps = np.intersect1d(np.intersect1d(response.steps, prompt.steps), seconds.steps)
    steps = steps[1:] if len(steps) > 1 else steps
    if not len(steps):
        return None
    length = _at(response, steps) + _at(prompt, steps)
    scale = shape.prompts * shape.responses / shape.devices
    rates = length * scale / _at(seconds, steps)
    common = np.intersect1d(steps, logged.steps) if logged is not None else steps[:0]
    if logged is None or not len(common):
        return Throughput(float(np.median(rates)), None, None, len(steps))
    theirs = _at(logged, common)
    gap = np.abs(rates[np.isin(steps, common)] - theirs) / np.abs(theirs)
    return Throughput(
        float(np.median(rates)), float(np.median(theirs)), float(np.max(gap)), len(steps)
    )


def _at(series: MetricSeries, steps: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """float64 [n]: the values at these steps, each of which the series has."""
    return series.values[np.searchsorted(series.steps, steps)]


def _constant(series: MetricSeries | None) -> float | None:
    """Return the value of a series that has only one."""
    if series is None or not len(series) or np.ptp(series.values) != 0:
        return None
    return float(series.values[0])


def _median(series: MetricSeries) -> float:
    return float(np.median(series.values[1:] if len(series) > 1 else series.values))


def _count(series: MetricSeries) -> int:
    return max(1, len(series) - 1)
