"""Where a training step's time goes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from align.core.metric import MetricLog, MetricSeries
from align.core.text import Text


class Stage(str, Enum):
    """A part of a training step."""

    GENERATE = "generate"
    UPDATE = "update"
    REF = "ref"
    OLD_LOG_PROB = "old_log_prob"
    VALUES = "values"
    REWARD = "reward"
    WEIGHT_SYNC = "weight_sync"
    OTHER = "other"


LABELS = {
    Stage.GENERATE: Text("generate (rollout)", "生成（rollout）"),
    Stage.UPDATE: Text("update", "更新（update）"),
    Stage.REF: Text("reference log_prob", "ref 计算"),
    Stage.OLD_LOG_PROB: Text("old log_prob", "old_log_prob 计算"),
    Stage.VALUES: Text("critic values", "critic 计算"),
    Stage.REWARD: Text("reward and advantages", "奖励与 advantage"),
    Stage.WEIGHT_SYNC: Text("weight synchronisation", "权重同步与重切分"),
    Stage.OTHER: Text("other", "其他"),
}

_STEP = ("timing_s/step", "perf/time_per_step")

# Each line is summed; of the names in one place the first that a run logs counts. MindSpeed-RL
# computes the reference and the reward while it generates and logs what is not covered by that.
_PARTS: dict[Stage, tuple[tuple[str, ...], ...]] = {
    Stage.GENERATE: (("timing_s/gen",), ("timing_s/gen_max",)),
    Stage.UPDATE: (("timing_s/update_actor",), ("timing_s/update_critic",)),
    Stage.REF: (("timing/non_overlap_reference_model", "timing_s/ref"),),
    Stage.OLD_LOG_PROB: (("timing_s/old_log_prob",),),
    Stage.VALUES: (("timing_s/values",),),
    Stage.REWARD: (
        ("timing/non_overlap_rule_reward", "timing_s/reward"),
        ("timing/non_overlap_reward_model", "timing/reward_model"),
        ("timing/non_overlap_adv", "timing_s/adv"),
    ),
    Stage.WEIGHT_SYNC: (
        ("timing_s/update_weights",),
        ("timing/resharding_to_infer",),
        ("timing/resharding_to_train",),
    ),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One stage: median seconds a step, and median share of the step's time."""

    stage: Stage
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of one step, over the steps after the first.

    Args:
        seconds: median of a whole step.
        num_steps: steps it is the median of.
        skips_first: the first recorded step was left out; it compiles and warms up.
        parts: slowest first, ``OTHER`` last.
        overlapping: stages run at the same time, so that they add up to more than the step.
        longest_generation: longest single generation, in seconds.
    """

    seconds: float
    num_steps: int
    skips_first: bool
    parts: tuple[Part, ...]
    overlapping: bool
    longest_generation: float | None

    def share_of(self, stage: Stage) -> float | None:
        """Return the share of a stage, None where it was not logged."""
        return next((part.share for part in self.parts if part.stage is stage), None)

    @property
    def slowest(self) -> Part | None:
        """The named stage that takes longest."""
        return next((part for part in self.parts if part.stage is not Stage.OTHER), None)


def step_time(metrics: MetricLog) -> StepTime | None:
    """Break the step time down; None where no step time is logged.

    A step counts where the whole and every stage the run logs at most steps are there. Validation
    and checkpoints, logged apart, are in none of the stages.
    """
    whole = _first(metrics, _STEP)
    if whole is None:
        return None
    parts = {stage: _logged(metrics, names) for stage, names in _PARTS.items()}
    used = [series for group in parts.values() for series in group]
    steps = whole.steps[np.isfinite(whole.values) & (whole.values > 0)]
    for series in used:
        at = series.steps[np.isfinite(series.values)]
        if 2 * len(np.intersect1d(steps, at)) > len(steps):
            steps = np.intersect1d(steps, at)
    if not len(steps):
        return None
    kept = steps[1:] if len(steps) > 1 else steps
    total = _at(whole, kept)
    times = {
        stage: sum((_at(s, kept) for s in g), np.zeros(len(kept)))
        for stage, g in parts.items()
        if g
    }
    named = sum(times.values(), np.zeros(len(kept)))
    found = [Part(s, float(np.median(t)), float(np.median(t / total))) for s, t in times.items()]
    found.sort(key=lambda part: -part.seconds)
    rest = np.maximum(total - named, 0.0)
    other = Part(Stage.OTHER, float(np.median(rest)), float(np.median(rest / total)))
    generation = parts[Stage.GENERATE]
    longest = max((float(np.nanmax(s.values)) for s in generation), default=None)
    return StepTime(
        seconds=float(np.median(total)),
        num_steps=len(kept),
        skips_first=len(steps) > 1,
        parts=(*found, other) if found else (),
        overlapping=bool(np.median(named / total) > _OVERLAP),
        longest_generation=longest,
    )


_OVERLAP = 1.01  # timers of stages that follow each other never add up to more than the step


def _first(metrics: MetricLog, names: tuple[str, ...]) -> MetricSeries | None:
    found = (metrics.get(name) for name in names)
    return next((s for s in found if s is not None and np.isfinite(s.values).any()), None)


def _logged(metrics: MetricLog, names: tuple[tuple[str, ...], ...]) -> list[MetricSeries]:
    return [series for each in names if (series := _first(metrics, each)) is not None]


def _at(series: MetricSeries, steps: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """float64 [n]: the values at these steps, 0 where a stage was not logged at one."""
    values = np.zeros(len(steps))
    _, ours, theirs = np.intersect1d(steps, series.steps, return_indices=True)
    values[ours] = np.nan_to_num(series.values[theirs])
    return values
