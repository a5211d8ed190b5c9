"""Log_probs that differ although the logits they are made of agree: a temperature left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.layers.trainer_tensors import TrainerPair, trainer_pair
from dumps.store.run_data import RunData

APART = Threshold(0.01, "verl's own limit of a mean difference that rounding explains, in nats")
_SLOPE = Threshold(0.05, "one temperature step people use: 1.0 against 0.95")


@dataclass(frozen=True, slots=True)
class LogProbs:
    """The candidate's log_probs against the reference's, over response tokens.

    Args:
        mean: mean absolute difference, nats.
        slope: of the candidate's on the reference's.
        engine: mean absolute difference of each side from its own rollout engine, where recorded.
    """

    mean: float
    slope: float
    engine: tuple[float, float] | None


def temperature_finding(reference: RunData, candidate: RunData, step: int) -> Finding | None:
    """Compare the trainers' log_probs of the same tokens; the logits are known to agree."""
    pair = trainer_pair(reference, candidate, step)
    found = None if pair is None else compare_log_probs(pair)
    if pair is None or found is None or found.mean <= APART.value:
        return None
    return _finding(pair, found, step)


def compare_log_probs(pair: TrainerPair) -> LogProbs | None:
    """Measure how far the log_probs are apart; None where they are not recorded."""
    both, masks = pair.both("old_log_probs"), pair.both("response_mask")
    if both is None or masks is None:
        return None
    here = (masks[0] != 0) & (masks[1] != 0)
    own, other = (each[here].astype(np.float64) for each in both)
    if own.size < 2:
        return None
    spread = own - own.mean()
    size = float(spread @ spread)
    slope = float(spread @ (other - other.mean())) / size if size else 1.0
    sampled = pair.both("rollout_log_probs")
    engine = None
    if sampled is not None:
        means = [
            float(np.abs(trained - drawn[here]).mean())
            for trained, drawn in zip((own, other), sampled, strict=True)
        ]
        engine = (means[0], means[1])
    return LogProbs(float(np.abs(own - other).mean()), slope, engine)


def _finding(pair: TrainerPair, found: LogProbs, step: int) -> Finding:
    off = found.engine is not None and found.engine[0] > found.engine[1]
    side = Side.REFERENCE if off else Side.CANDIDATE
    side_zh = "参考" if off else "被测"
    is_slope = abs(found.slope - 1) > _SLOPE.value
    engine = found.engine or (float("nan"), float("nan"))
    return Finding(
        id="forward.temperature" if is_slope else "forward.log_probs",
        rung=Rung.FORWARD,
        severity=Severity.ERROR,
        title=Text(
            f"logits agree and the trainers' log_probs do not: {found.mean:.2g} nats apart on "
            f"average at step {step}, slope {found.slope:.3g}",
            f"logits 一致，而训练侧的 log_probs 不同：第 {step} 步平均相差 {found.mean:.2g} nat，"
            f"斜率 {found.slope:.3g}",
        ),
        reference=engine[0],
        candidate=engine[1],
        evidence=tuple(
            Evidence(
                source,
                which,
                key="old_log_probs",
                text=f"mean absolute difference from its own rollout engine: {apart:.3g} nats",
            )
            for source, which, apart in zip(
                pair.source, (Side.REFERENCE, Side.CANDIDATE), engine, strict=True
            )
        ),
        why=Text(
            f"Every recorded activation agrees, so the difference is made between logits and "
            f"log_probs: a temperature that one side does not divide by. The {side.value} is "
            "further from its own engine.",
            "所有已记录的激活都一致，因此差异产生于 logits 与 log_probs 之间："
            f"有一侧没有除以温度。{side_zh}与自己的推理引擎相差更大。",
        ),
        fix=Text(
            "Divide the trainer's logits by rollout.temperature before the log-softmax, on both "
            "sides alike.",
            "在两侧计算 log-softmax 之前，都把训练侧的 logits 除以 rollout.temperature。",
        ),
        mechanism=Mechanism(
            Rung.FORWARD, Strength.SEMANTIC, ("training/rollout_probs_diff*", "rollout_corr/*")
        ),
    )
