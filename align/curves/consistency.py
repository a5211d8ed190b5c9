"""How well each trainer agrees with its own rollout engine, compared by order of magnitude."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.pair import BoolArray, FloatArray, PairedMetric, Pairing
from align.curves.shift_findings import dotted

ORDER_OF_MAGNITUDE = Threshold(
    10.0, source="healthy runs differ by kernels within one dtype; another dtype by 2^8 and more"
)
HEALTHY = Threshold(0.005, source="verl FAQ: rollout_probs_diff_mean below 0.005 is normal")
PROBLEM = Threshold(0.01, source="verl FAQ: rollout_probs_diff_mean above 0.01 is a problem")
MEAN = "training/rollout_probs_diff_mean"


@dataclass(frozen=True, slots=True)
class Agreement:
    """How to read one metric: its distance from perfect agreement, and what rounding can give."""

    perfect: float
    rounding: float


_PROBABILITY = Agreement(0.0, 2.0**-24)  # half a float32 ulp of a probability near 1
_LOG_PROBABILITY = Agreement(0.0, 2.0**-20)  # one float32 ulp of a log-probability near -16
_READ: dict[str, Agreement] = {
    MEAN: _PROBABILITY,
    "training/rollout_probs_diff_max": _PROBABILITY,
    "training/rollout_probs_diff_std": _PROBABILITY,
    "training/rollout_actor_probs_pearson_corr": Agreement(1.0, 2.0**-20),
    "rollout_corr/log_ppl_abs_diff": _LOG_PROBABILITY,
    "rollout_corr/k3_kl": _LOG_PROBABILITY,
}


def consistency_findings(pairing: Pairing) -> Iterator[Finding]:
    """Yield metrics of trainer-rollout agreement that differ tenfold at every step from some on.

    One alone would be luck; two steps are enough, since these are means over a whole batch.
    """
    for name, reading in _READ.items():
        metric = pairing.get(name)
        if metric is None:
            continue
        finite = metric.finite_only()
        ours, theirs = (
            np.maximum(np.abs(v - reading.perfect), reading.rounding)
            for v in (finite.reference, finite.candidate)
        )
        for worse, ratio in (("candidate", theirs / ours), ("reference", ours / theirs)):
            onset = _last_run(ratio >= ORDER_OF_MAGNITUDE.value)
            if onset is not None:
                yield _finding(pairing, finite, onset, worse, ratio[onset:])


def is_consistency(name: str) -> bool:
    """Tell whether a metric is judged here, and not by its mean."""
    return name in _READ


def _last_run(mask: BoolArray) -> int | None:
    """Return where the run of True at the end begins; None if it is under 2 steps or a tenth."""
    false = np.flatnonzero(~mask)
    begin = int(false[-1]) + 1 if len(false) else 0
    return begin if len(mask) - begin >= max(2, len(mask) / 10) else None


def _finding(
    pairing: Pairing, metric: PairedMetric, onset: int, worse: str, ratio: FloatArray
) -> Finding:
    step = int(metric.steps[onset])
    reference, candidate = (float(v[onset:].mean()) for v in (metric.reference, metric.candidate))
    low, high = sorted((reference, candidate))
    sick = metric.name == MEAN and low < HEALTHY.value and high > PROBLEM.value
    times = f"{float(ratio.min()):.3g}"
    digits = ".3g" if _READ[metric.name].perfect == 0 else ".8g"
    worse_zh = "被测" if worse == "candidate" else "参考"
    return Finding(
        id=f"curves.{dotted(metric.name)}.magnitude",
        rung=Rung.CURVES,
        severity=Severity.ERROR if sick and worse == "candidate" else Severity.WARNING,
        title=Text(
            f"{metric.name}: trainer and rollout engine of the {worse} disagree at least "
            f"{times} times more, at every step from {step} on ({reference:{digits}} in "
            f"the reference, {candidate:{digits}} in the candidate)",
            f"{metric.name}：从第 {step} 步起，{worse_zh}的训练与推理之间的差异每一步都更大"
            f"（至少 {times} 倍；参考 {reference:{digits}}，被测 {candidate:{digits}}）",
        ),
        reference=reference,
        candidate=candidate,
        evidence=metric.evidence(step),
        why=Text(
            "It compares the probabilities the rollout engine sampled with and those the trainer "
            "computes for the same tokens. A tenfold difference at every step is not noise: "
            "another dtype or kernel on one side, or weights that were not synchronised. Below "
            "0.005 is normal, above 0.01 a problem.",
            "该指标比较同一批 token 的两个概率：推理引擎采样时的概率与训练侧重新计算的概率。"
            "每一步都相差十倍并非噪声：可能是某一侧的数据类型或算子不同，或权重没有同步。"
            "低于 0.005 属正常，高于 0.01 则有问题。",
        ),
        fix=Text(
            "Compare rollout dtype, quantisation, attention backend and weight conversion of both "
            "runs; then one step with lr = 0.",
            "比较两侧 rollout 的数据类型、量化、注意力后端与权重转换，再以 lr = 0 运行一个 step。",
        ),
        symptom=metric.symptom(step, pairing.first_step, noise_sized=False),
    )
