"""One side's metric is a known function of the other's: other definitions, not other training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.noise import deviation, p_value, step_noise
from align.curves.pair import FloatArray, PairedMetric, Pairing
from align.curves.shift_findings import dotted

MIN_STEPS = Threshold(20, source="a sign kept 20 times running is chance once in a million")
FAR_APART = Threshold(
    5.0, source="at nine steps of ten the two are farther apart than 5 times the noise of one step"
)
SAME_ROUNDED = Threshold(1e-4, source="what three or four printed decimals leave of a value")
LEFT_OVER = Threshold(
    0.05, source="the function takes away 19 twentieths of the distance; acceptance allows 5 %"
)
SAME_BY_CHANCE = Threshold(0.05, source="after the change of definition, no shift at the 5 % level")


@dataclass(frozen=True, slots=True)
class Rule:
    """A change of definition: ``other(values)`` turns one side's values into the other's."""

    name: str
    other: Callable[[FloatArray], FloatArray]
    words: Text


RULES = (
    Rule("negated", lambda v: -v, Text("the negative of", "取负")),
    Rule("absolute", np.abs, Text("the absolute value of", "取绝对值")),
    Rule("complement", lambda v: 1 - v, Text("1 minus", "1 减去")),
    Rule("percent", lambda v: 100 * v, Text("100 times (percent)", "乘以 100（百分数）")),
    Rule("exponential", np.exp, Text("e to the power of (a probability of a log)", "取指数")),
    Rule("logarithm", np.log, Text("the logarithm of", "取对数")),
    Rule("nats_to_bits", lambda v: v / np.log(2), Text("in bits instead of nats,", "单位换为 bit")),
    Rule("square", np.square, Text("the square of (a variance of a deviation)", "取平方")),
)


@dataclass(frozen=True, slots=True)
class Redefined:
    """``derived`` is ``rule`` of the other side, at all steps.

    Args:
        exact: up to rounding; else within the noise of both runs.
        derived: "reference" or "candidate".
    """

    metric: PairedMetric
    rule: Rule
    derived: str
    exact: bool


def find_redefined(pairing: Pairing) -> Iterator[Redefined]:
    """Yield the metrics of training of which one side is a known function of the other.

    Either the function holds up to rounding at every step, and the plain values do not agree; or
    the values are far apart as they stand and within noise after it. An absolute value of a
    quantity around 0 shows by its sign: never negative on one side, often on the other.
    """
    for metric in pairing.training:
        finite = metric.finite_only()
        if len(finite) < MIN_STEPS.value or not finite.differs().any():
            continue
        found = _exact(finite) or _within_noise(finite)
        if found is not None:
            yield found


def redefined_finding(found: Redefined) -> Finding:
    """Say which side is what of the other. No symptom: training itself may be the same."""
    metric, rule = found.metric, found.rule
    other = "candidate" if found.derived == "reference" else "reference"
    zh = {"reference": "参考", "candidate": "被测"}
    how = _EXACT if found.exact else _NOISY
    step = int(metric.steps[0])
    return Finding(
        id=f"curves.{dotted(metric.name)}.definition",
        rung=Rung.CURVES,
        severity=Severity.WARNING,
        title=Text(
            f"{metric.name} is defined differently: the {found.derived}'s is {rule.words.en} the "
            f"{other}'s ({rule.name})",
            f"{metric.name} 两侧定义不同：{zh[found.derived]}的值等于对{zh[other]}的值"
            f"{rule.words.zh}（{rule.name}）",
        ),
        reference=float(metric.reference[0]),
        candidate=float(metric.candidate[0]),
        evidence=metric.evidence(step),
        why=Text(
            f"{how.en} So this metric says nothing about training until both sides log one "
            "quantity.",
            f"{how.zh}在两侧记录同一个量之前，该指标不能说明训练是否一致。",
        ),
        fix=Text(
            "Log the same quantity on both sides, or convert one of them; then compare again.",
            "让两侧记录同一个量，或换算其中一侧，再重新比较。",
        ),
    )


_EXACT = Text(
    "The function holds at every step up to rounding.", "该函数关系在每一步都成立（仅差舍入）。"
)
_NOISY = Text(
    "As recorded the two are far apart at every step; after the function only noise is left.",
    "按记录值，两侧在每一步都相差很远；经此函数换算后只剩噪声。",
)


def _sides(metric: PairedMetric) -> tuple[tuple[str, FloatArray, FloatArray], ...]:
    return (
        ("candidate", metric.reference, metric.candidate),
        ("reference", metric.candidate, metric.reference),
    )


def _exact(metric: PairedMetric) -> Redefined | None:
    """Find a rule that holds up to rounding where the values move enough to tell."""
    for derived, source, target in _sides(metric):
        for rule in RULES:
            with np.errstate(all="ignore"):
                expected = rule.other(source)
            scale = SAME_ROUNDED.value * float(np.abs(target).max())
            if not np.isfinite(expected).all() or np.ptp(target) <= 10 * scale:
                continue
            near = np.abs(expected - target) <= np.maximum(scale, metric.resolution)
            if near.all() and not (np.abs(source - target) <= scale).all():
                return Redefined(metric, rule, derived, True)
    return None


def _within_noise(metric: PairedMetric) -> Redefined | None:
    """Find a rule that leaves only noise of a difference that is large at every step."""
    for derived, source, target in _sides(metric):
        noise = max(step_noise(source), step_noise(target))
        apart = np.quantile(np.abs(target - source), 0.1) > FAR_APART.value * noise
        for rule in RULES:
            if rule.name == "absolute":
                fits = _is_absolute(source, target)
            else:
                fits = bool(apart) and _fits(rule, source, target)
            if fits:
                return Redefined(metric, rule, derived, False)
    return None


def _fits(rule: Rule, source: FloatArray, target: FloatArray) -> bool:
    with np.errstate(all="ignore"):
        expected = rule.other(source)
    if not np.isfinite(expected).all() or min(np.ptp(expected), np.ptp(target)) == 0:
        return False
    difference = target - expected
    spread = np.hypot(deviation(expected), deviation(target))
    # The scatter must fit too: a factor that only moves the mean is no change of definition.
    alike = 0.5 <= step_noise(expected) / max(step_noise(target), 1e-300) <= 2.0
    left = abs(float(difference.mean())) / float(np.median(np.abs(target - source)))
    same = p_value(difference) > SAME_BY_CHANCE.value or left <= LEFT_OVER.value
    return bool(alike and same and np.abs(difference).max() <= 6 * spread)


def _is_absolute(source: FloatArray, target: FloatArray) -> bool:
    """Tell whether ``target`` is never negative while a quarter or more of ``source`` is."""
    negative = float((source < 0).mean())
    if (target < 0).any() or not 0.25 <= negative <= 1.0 or not (target > 0).mean() > 0.9:
        return False
    sizes = np.median(np.abs(source)), np.median(target)
    return bool(0.5 <= sizes[0] / max(float(sizes[1]), 1e-300) <= 2.0)
