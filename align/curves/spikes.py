"""Single steps that stand far out of their neighbourhood, counted on each side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from align.core.figure import Cell, Column, Table
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


LIMITS = (
    (
        "*mult_prob_error",
        Threshold(1.05, source="NeMo-RL: mean exp of the absolute log-prob difference above 1.05"),
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Spikes:
    """Steps at which a metric spikes.

    Args:
        metric: at steps where both sides are numbers.
        reference, candidate: bool [n], where each side spikes.
        limit: above which a value is a spike; None where the neighbourhood decides.
    """

    metric: PairedMetric
    reference: BoolArray
    candidate: BoolArray
    limit: Threshold | None

    @property
    def more(self) -> str:
        """The side that spikes more often."""
        return "candidate" if self.candidate.sum() >= self.reference.sum() else "reference"

    @property
    def first_step(self) -> int:
        """First step at which the side that spikes more often does."""
        mask = self.candidate if self.more == "candidate" else self.reference
        return int(self.metric.steps[int(np.argmax(mask))])


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


def find_spikes(pairing: Pairing) -> Iterator[Spikes]:
    """Yield metrics that spike more on one side.

    A spike is a step 10 sigma out and 3 times as far as any of the other run's, which shows how
    heavy the metric's own tails are; for a metric with a known limit, any value above it.
    """
    for metric in pairing.training:
        limit = _limit_of(metric.name)
        if limit is not None and len(metric.finite_only()):
            finite = metric.finite_only()
            masks = [v > limit.value for v in (finite.reference, finite.candidate)]
            if masks[0].sum() != masks[1].sum():
                yield Spikes(finite, masks[0], masks[1], limit)
    for metric in testable(m for m in pairing.training if _limit_of(m.name) is None):
        values = metric.reference, metric.candidate
        first, second = (outlyingness(np.log(v) if uses_ratio(metric) else v) for v in values)
        least = FAR_OUT.value
        masks = [
            ours > max(least, _FARTHER * float(theirs.max()))
            for ours, theirs in ((first, second), (second, first))
        ]
        if masks[0].any() or masks[1].any():
            yield Spikes(metric, masks[0], masks[1], None)


def without_spikes(metric: PairedMetric, found: Iterable[Spikes]) -> PairedMetric:
    """Return a metric without the steps at which either side spikes.

    A level that lasts is told from what is left: a dozen steps thirty times as large move the mean
    of 500, and are no offset. Spikes above a known limit stay, as theirs can be any step.
    """
    for spikes in found:
        if spikes.metric.name == metric.name and spikes.limit is None:
            steps = spikes.metric.steps[spikes.reference | spikes.candidate]
            return metric.where(~np.isin(metric.steps, steps))
    return metric


def spike_findings(found: Iterable[Spikes]) -> Iterator[Finding]:
    """Yield a note for each metric that spikes; a warning where a known limit is passed."""
    for spikes in found:
        yield _finding(spikes)


def spike_table(found: Sequence[Spikes]) -> Table | None:
    """Show how often each metric spikes on each side, with 95 % intervals."""
    if not found:
        return None
    return Table(
        id="curves.spikes",
        title=Text("Spikes: how often", "尖峰出现的频率"),
        columns=(
            Column("metric", Text("metric", "指标")),
            Column("steps", Text("steps", "步数"), numeric=True),
            Column("reference", Text("spikes, reference", "参考尖峰数"), numeric=True),
            Column("reference_rate", Text("rate, reference", "参考频率")),
            Column("candidate", Text("spikes, candidate", "被测尖峰数"), numeric=True),
            Column("candidate_rate", Text("rate, candidate", "被测频率")),
            Column("largest", Text("largest, candidate", "被测最大值"), numeric=True),
            Column("first", Text("first step", "首次出现的步"), numeric=True),
        ),
        rows=tuple(_row(spikes) for spikes in found),
    )


def rate_words(num: int, of: int) -> str:
    """Return a rate with its 95 % interval. Source: Wilson 1927, score interval."""
    z, share = 1.959964, num / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    reach = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return f"{share:.1%} ({max(middle - reach, 0):.1%} – {min(middle + reach, 1):.1%})"


def _limit_of(name: str) -> Threshold | None:
    return next((limit for pattern, limit in LIMITS if fnmatchcase(name, pattern)), None)


def _row(spikes: Spikes) -> tuple[Cell, ...]:
    metric, num = spikes.metric, len(spikes.metric)
    counts = int(spikes.reference.sum()), int(spikes.candidate.sum())
    return (
        metric.name,
        num,
        counts[0],
        rate_words(counts[0], num),
        counts[1],
        rate_words(counts[1], num),
        float(metric.candidate[np.argmax(np.abs(metric.candidate))]),
        spikes.first_step,
    )


def _finding(spikes: Spikes) -> Finding:
    metric, num = spikes.metric, len(spikes.metric)
    more = spikes.more
    mask = spikes.candidate if more == "candidate" else spikes.reference
    steps = metric.steps[mask]
    zh = "参考" if more == "reference" else "被测"
    shown_zh = "、".join(map(str, steps[:5])) + (" 等" if len(steps) > 5 else "")
    shown = ", ".join(map(str, steps[:5])) + (", …" if len(steps) > 5 else "")
    counts = int(spikes.reference.sum()), int(spikes.candidate.sum())
    rates = [rate_words(count, num) for count in counts]
    return Finding(
        id=f"curves.{dotted(metric.name)}.spikes",
        rung=Rung.CURVES,
        severity=Severity.INFO if spikes.limit is None else Severity.WARNING,
        title=Text(
            f"{metric.name} spikes at {len(steps)} of {num} steps of the {more}, at "
            f"{min(counts)} of the other run (step {shown})",
            f"{metric.name}：{zh}在 {num} 步中有 {len(steps)} 步出现尖峰，"
            f"另一侧有 {min(counts)} 步（第 {shown_zh} 步）",
        ),
        reference=float(metric.reference[mask][0]),
        candidate=float(metric.candidate[mask][0]),
        evidence=metric.evidence(int(steps[0])),
        why=Text(
            f"Rates: {rates[0]} in the reference, {rates[1]} in the candidate. "
            + (
                _FAR.en
                if spikes.limit is None
                else f"Above {spikes.limit.value:g} is a spike: "
                f"{spikes.limit.source}. A reward that is equal is no evidence against it."
            ),
            f"频率：参考 {rates[0]}，被测 {rates[1]}。"
            + (
                _FAR.zh
                if spikes.limit is None
                else f"高于 {spikes.limit.value:g} 即为尖峰"
                f"（{spikes.limit.source}）。奖励相同并不能排除此问题。"
            ),
        ),
        fix=Text(
            "Look at the prompts and response lengths of these steps.",
            "查看这些步的 prompt 与回复长度。",
        ),
        symptom=None
        if spikes.limit is None
        else metric.symptom(spikes.first_step, int(metric.steps[0]), noise_sized=False),
    )


_FAR = Text(
    "A spike is a step more than 10 robust standard deviations from the median of the 9 steps "
    "around it, and 3 times as far as any step of the other run. A few are ordinary.",
    "若某一步偏离前后 9 步的中位数超过 10 倍稳健标准差，"
    "并达到另一侧最大偏离的 3 倍以上，则称为尖峰。少数几个尖峰属正常。",
)
