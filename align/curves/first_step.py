"""Is the reward different from the very first step on, before anything was learnt?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.accept import ABSOLUTE_LIMIT, REWARDS
from align.curves.noise import step_noise, two_sided_t
from align.curves.pair import PairedMetric, Pairing, is_exact

ALPHA = Threshold(1e-4, source="one false alarm in ten thousand clean pairs: it is an error")
MIN_STEPS_FOR_NOISE = Threshold(
    10, source="nine successive differences give the step noise within a quarter"
)


def first_step_findings(pairing: Pairing) -> Iterator[Finding]:
    """Yield an error where the first rewards differ by more than sampling can explain.

    On equal prompts, from the number of responses and the largest variance a reward between the
    recorded extremes can have: (max - mean)(mean - min) (Bhatia and Davis 2000); else from how the
    paired difference varies from step to step, over ten steps at least.
    """
    found = (pairing.get(name) for name in REWARDS)
    reward = next((metric for metric in found if metric is not None), None)
    if reward is None or len(reward.finite_only()) == 0 or pairing.first_step > 1:
        return  # a resumed run has learnt already
    reward = reward.finite_only()
    noise = _noise(pairing, reward)
    difference = float(reward.candidate[0] - reward.reference[0])
    if noise is None or int(reward.steps[0]) != pairing.first_step:
        return
    deviation, freedom, source = noise
    span = _span(pairing, reward)
    large = span is None or abs(difference) > ABSOLUTE_LIMIT.value * span
    if large and deviation > 0 and two_sided_t(abs(difference) / deviation, freedom) < ALPHA.value:
        yield _finding(pairing, reward, difference / deviation, source)


def _noise(pairing: Pairing, reward: PairedMetric) -> tuple[float, float, Text] | None:
    """Return standard deviation and degrees of freedom of the first step's difference."""
    of_batch = _noise_of_batch(pairing, reward)
    if of_batch is None and len(reward) >= MIN_STEPS_FOR_NOISE.value:
        return step_noise(reward.candidate - reward.reference), len(reward) - 1, _FROM_STEPS
    return of_batch


def _noise_of_batch(pairing: Pairing, reward: PairedMetric) -> tuple[float, float, Text] | None:
    num = _num_responses(pairing)
    if num is None or not _same_prompts(pairing):
        return None
    variance = 0.0
    for side in ("reference", "candidate"):
        extremes = [
            _first(pairing, reward.name.replace("mean", end), side) for end in ("max", "min")
        ]
        mean = float(getattr(reward, side)[0])
        if extremes[0] is None or extremes[1] is None:
            return None
        variance += max(0.0, (extremes[0] - mean) * (mean - extremes[1])) / num
    return math.sqrt(variance), num - 1, _FROM_BATCH


def _num_responses(pairing: Pairing) -> float | None:
    """Return responses a batch: all tokens over tokens of a mean prompt and response."""
    numbers = []
    for side in ("reference", "candidate"):
        names = ("perf/total_num_tokens", "prompt_length/mean", "response_length/mean")
        total, prompt, response = (_first(pairing, name, side) for name in names)
        if total is None or prompt is None or response is None or prompt + response <= 0:
            return None
        numbers.append(total / (prompt + response))
    return min(numbers) if min(numbers) > 2 else None


def _same_prompts(pairing: Pairing) -> bool:
    lengths = [m for m in pairing.metrics if is_exact(m.name) and m.meaning.rung is Rung.DATA]
    return bool(lengths) and not any(m.differs()[0] for m in lengths if m.name.count("length/m"))


def _first(pairing: Pairing, name: str, side: str) -> float | None:
    metric = pairing.get(name)
    if metric is None or int(metric.steps[0]) != pairing.first_step:
        return None
    value = float(getattr(metric, side)[0])
    return value if math.isfinite(value) else None


def _span(pairing: Pairing, reward: PairedMetric) -> float | None:
    high, low = (
        _first(pairing, reward.name.replace("mean", end), "reference") for end in ("max", "min")
    )
    return None if high is None or low is None else high - low


def _finding(pairing: Pairing, reward: PairedMetric, sigmas: float, source: Text) -> Finding:
    step = int(reward.steps[0])
    reference, candidate = float(reward.reference[0]), float(reward.candidate[0])
    return Finding(
        id="curves.reward.first_step",
        rung=Rung.CURVES,
        severity=Severity.ERROR,
        title=Text(
            f"The reward differs from the first step on: {reference:.4g} in the reference, "
            f"{candidate:.4g} in the candidate at step {step}",
            f"奖励从第一步起就不同：第 {step} 步参考为 {reference:.4g}，被测为 {candidate:.4g}",
        ),
        reference=reference,
        candidate=candidate,
        evidence=reward.evidence(step),
        why=Text(
            f"The difference is {abs(sigmas):.3g} standard deviations of one step ({source.en}). "
            "Nothing has been learnt yet at the first step, so only what comes before the first "
            "update can differ: prompts, generation, model weights, reward.",
            f"差值为单步标准差的 {abs(sigmas):.3g} 倍（{source.zh}）。"
            "第一步时模型尚未更新，因此只可能是更新之前的环节不同：prompt、生成、模型权重或奖励。",
        ),
        fix=Text(
            "Dump the rollouts of the first step on both sides and compare prompts, responses and "
            "scores row by row.",
            "在两侧导出第一步的 rollout，逐行比较 prompt、回复与得分。",
        ),
        symptom=reward.symptom(step, pairing.first_step, noise_sized=False),
    )


_FROM_STEPS = Text("from how the difference varies from step to step", "由差值在各步之间的变化估计")
_FROM_BATCH = Text(
    "at most, from the number of responses and the extreme rewards",
    "由回复数与最大、最小奖励得到的上界",
)
