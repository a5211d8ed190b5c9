"""Metrics that stop moving on one side while the other goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.pair import FloatArray, PairedMetric, Pairing, is_exact
from align.curves.shift_findings import dotted
from align.frameworks.vocabulary import MetricKind

MIN_STUCK_STEPS = Threshold(
    10, source="a mean over a batch that takes one value ten times running is not sampled"
)
_MEANS = frozenset({MetricKind.POSITIVE, MetricKind.LEVEL, MetricKind.SIGNED, MetricKind.BOUNDED})
_LIMIT = "response_length/clip_ratio"


@dataclass(frozen=True, slots=True, eq=False)
class Stuck:
    """A metric that ends constant on one side.

    Args:
        metric: at steps where both sides are numbers.
        side: that is constant: "reference" or "candidate".
        num: how many last steps.
    """

    metric: PairedMetric
    side: str
    num: int

    @property
    def values(self) -> FloatArray:
        """float64 [n] of the constant side."""
        return self.metric.reference if self.side == "reference" else self.metric.candidate

    @property
    def never_computed(self) -> bool:
        """0 throughout."""
        return self.num == len(self.values) and bool(self.values[-1] == 0)

    @property
    def step(self) -> int:
        """First of the constant steps."""
        return int(self.metric.steps[-self.num])


def find_stuck(pairing: Pairing) -> Iterator[Stuck]:
    """Yield metrics that end constant on one side and vary at those very steps on the other.

    The other side must take a new value at most steps: a share that is nearly always 0 is no sign.
    """
    for metric in pairing.training:
        if metric.meaning.kind not in _MEANS or is_exact(metric.name):
            continue
        finite = metric.finite_only()
        for stuck, values, others in (
            ("reference", finite.reference, finite.candidate),
            ("candidate", finite.candidate, finite.reference),
        ):
            num = num_stuck(values)
            if num >= MIN_STUCK_STEPS.value and len(np.unique(others[-num:])) > num / 2:
                yield Stuck(finite, stuck, num)


def constant_findings(pairing: Pairing, found: Iterable[Stuck]) -> Iterator[Finding]:
    """Yield a warning with its symptom for each; a note where it was probably not computed."""
    for stuck in found:
        yield _finding(pairing, stuck)


def num_stuck(values: FloatArray) -> int:
    """Return how many last values of a series [n] are equal."""
    changes = np.flatnonzero(np.diff(values))
    return len(values) - (int(changes[-1]) + 1 if len(changes) else 0)


def _finding(pairing: Pairing, found: Stuck) -> Finding:
    metric, stuck, num, step, values = (
        found.metric,
        found.side,
        found.num,
        found.step,
        found.values,
    )
    never_computed = found.never_computed
    limit = pairing.get(_LIMIT)
    at_limit = limit is not None and float(getattr(limit, stuck)[-1]) >= 1
    capped = (
        Text(
            f" {_LIMIT} is 1 there: every response is cut off at the length limit.",
            f"此时该侧的 {_LIMIT} 为 1：所有回复都因达到长度上限而被截断。",
        )
        if at_limit
        else Text("", "")
    )
    zh = "参考" if stuck == "reference" else "被测"
    return Finding(
        id=f"curves.{dotted(metric.name)}.constant",
        rung=Rung.CURVES,
        severity=Severity.INFO if never_computed else Severity.WARNING,
        title=Text(
            f"{metric.name} of the {stuck} is constant at {values[-1]:.6g} from step {step} on, "
            "while the other run's goes on varying",
            f"{metric.name}：{zh}从第 {step} 步起恒为 {values[-1]:.6g}，而另一侧仍在变化",
        ),
        reference=float(metric.reference[-num]),
        candidate=float(metric.candidate[-num]),
        evidence=metric.evidence(step),
        why=Text(
            f"A mean over sampled responses does not repeat {num} times by chance.{capped.en}",
            f"对采样回复求得的均值不会偶然连续 {num} 次相同。{capped.zh}",
        ),
        fix=Text(
            f"Read the responses of step {step}: empty, repeated or cut-off text is the usual "
            "reason; else the metric is not computed on that side.",
            f"查看第 {step} 步的回复文本：常见原因是回复为空、重复或被截断；"
            "否则就是该侧没有计算此指标。",
        ),
        symptom=None
        if never_computed
        else metric.symptom(step, pairing.first_step, noise_sized=False),
    )
