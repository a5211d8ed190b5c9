"""Where metrics first become NaN or infinite on each side, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from align.core.finding import Finding, Severity, Side
from align.core.metric import MetricSeries
from align.core.rung import Rung
from align.core.text import Text
from align.curves.pair import Pairing, value_evidence
from align.frameworks.vocabulary import MetricKind, metric_meaning

_MAX_NAMED = 6


@dataclass(frozen=True, slots=True)
class FirstNonfinite:
    """A metric's first NaN or infinity on one side."""

    series: MetricSeries
    side: Side
    step: int  # as the reference numbers steps
    value: float
    num: int  # how many of its values are not numbers


def first_nonfinite(pairing: Pairing) -> tuple[FirstNonfinite, ...]:
    """Return every metric that is not finite somewhere, by step, then by place in the chain.

    A series that never holds a number counts where the other run's does and the quantity is known:
    training broken from its first step on. Else it was never computed and is not an event.
    """
    found = []
    for metric in pairing.training:
        known = metric.meaning.kind is not MetricKind.UNKNOWN
        ours, theirs = metric.reference_series, metric.candidate_series
        for side, series, other, shift in (
            (Side.REFERENCE, ours, theirs, 0),
            (Side.CANDIDATE, theirs, ours, metric.shift),
        ):
            bad = ~np.isfinite(series.values)
            computed = not bad.all() or (known and np.isfinite(other.values).any())
            if bad.any() and computed:
                at = int(np.argmax(bad))
                step = int(series.steps[at]) + shift
                value = float(series.values[at])
                found.append(FirstNonfinite(series, side, step, value, int(bad.sum())))
    return tuple(sorted(found, key=_order))


def nonfinite_findings(pairing: Pairing) -> Iterator[Finding]:
    """Yield, for each side, what turned non-finite first; a note where both did at that step."""
    events = first_nonfinite(pairing)
    first = {
        side: [e for e in events if e.side is side] for side in (Side.REFERENCE, Side.CANDIDATE)
    }
    starts = {side: [(e.step, e.series.name) for e in of_side] for side, of_side in first.items()}
    together = starts[Side.REFERENCE] == starts[Side.CANDIDATE]
    for side, of_side in first.items():
        if of_side and not (together and side is Side.REFERENCE):
            yield _finding(pairing, of_side, side, Severity.INFO if together else Severity.ERROR)


def _order(event: FirstNonfinite) -> tuple[int, int, str]:
    return event.step, metric_meaning(event.series.name).rung.position, event.series.name


def _finding(
    pairing: Pairing, events: list[FirstNonfinite], side: Side, severity: Severity
) -> Finding:
    first, both = events[0], severity is Severity.INFO
    order = ", ".join(f"{e.series.name} ({e.step})" for e in events[:_MAX_NAMED])
    order_zh = "、".join(f"{e.series.name}（{e.step}）" for e in events[:_MAX_NAMED])
    more = "" if len(events) <= _MAX_NAMED else f" + {len(events) - _MAX_NAMED}"
    where = Text("both runs", "两侧") if both else _SIDE[side]
    metric = pairing.get(first.series.name)
    assert metric is not None
    values = [
        evidence.values[0] if evidence.values else None for evidence in metric.evidence(first.step)
    ]
    return Finding(
        id=f"curves.nonfinite.{'both' if both else side.value}",
        rung=Rung.CURVES,
        severity=severity,
        title=Text(
            f"{first.series.name} is the first metric to become {first.value} in {where.en}, at "
            f"step {first.step}",
            f"{where.zh}最先变为 {first.value} 的指标是 {first.series.name}（第 {first.step} 步）",
        ),
        reference=values[0],
        candidate=values[1],
        evidence=tuple(
            value_evidence(e.series, e.step - (metric.shift if side is Side.CANDIDATE else 0), side)
            for e in events[:_MAX_NAMED]
        ),
        why=Text(
            f"In order of first step: {order}{more}. What is not a number is never compared with "
            "a number."
            + (" Both runs do this alike: the data of that step is suspect." if both else ""),
            f"按首次出现的步排序：{order_zh}{more}。非数值从不与数值比较。"
            + ("两侧表现相同：应当怀疑该步的数据。" if both else ""),
        ),
        fix=Text(
            f"Look at the inputs of step {first.step} (prompts, response lengths), and resume "
            "from the checkpoint before it: the same step again means the data, another step "
            "means numerics.",
            f"检查第 {first.step} 步的输入（prompt、回复长度），并从该步之前的检查点续训："
            "若在同一步重现，则与数据有关；若出现在别的步，则与数值计算有关。",
        ),
        symptom=metric.symptom(first.step, pairing.first_step, noise_sized=False),
    )


_SIDE = {
    Side.REFERENCE: Text("the reference", "参考"),
    Side.CANDIDATE: Text("the candidate", "被测"),
}
