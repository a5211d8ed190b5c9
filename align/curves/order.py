"""Which metrics moved first, how surely, and what the first differing values say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from align.core.figure import Cell, Column, Table
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.classify import Classified
from align.curves.noise import FAMILY_ALPHA, lag_one_autocorrelation
from align.curves.pair import FloatArray, PairedMetric, Pairing, is_exact
from align.curves.prominence import prominence
from align.curves.shift import difference_of
from align.curves.smooth import MIN_WINDOW
from align.frameworks.vocabulary import MetricKind

MAX_LAG = Threshold(20, source="a cause acts within the smoothing window of 21 steps")
ROUNDING = Threshold(2.0**-20, source="a float32 sum of a batch of values near 1, in another order")
_MAX_NAMED = 6
_STARTERS = ("response_length/mean", "critic/score/mean", "actor/entropy")
_TRAINED = frozenset({MetricKind.POSITIVE, MetricKind.LEVEL, MetricKind.SIGNED, MetricKind.BOUNDED})


@dataclass(frozen=True, slots=True)
class Lag:
    """Step by step, one difference follows another.

    Args:
        steps: how many steps this metric's difference comes after the other's; negative: before.
        correlation: at that lag.
    """

    steps: int
    correlation: float


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """A metric that moved, in order of onset.

    Args:
        after_first: (least, most) steps between the first metric's onset and this one's.
        surely_later: the two intervals of onset do not touch.
        lag: behind the first metric, step by step; None where no lag is beyond chance.
    """

    classified: Classified
    begin: int
    end: int
    after_first: tuple[int, int]
    surely_later: bool
    lag: Lag | None


def in_order(classes: Sequence[Classified]) -> tuple[Moved, ...]:
    """Return the metrics that are apart beyond noise and have an onset, by onset."""
    moved = [c for c in classes if c.kind.is_apart and c.onset is not None]
    moved.sort(key=lambda c: (_end(c), c.metric.meaning.rung.position, prominence(c.metric.name)))
    if not moved:
        return ()
    first = moved[0]
    begin, end = _begin(first), _end(first)
    lags = [None if c is first else lag_of(first, c, len(moved) - 1) for c in moved]
    return tuple(
        Moved(
            c,
            _begin(c),
            _end(c),
            (_begin(c) - end, _end(c) - begin),
            _begin(c) > end,
            lag,
        )
        for c, lag in zip(moved, lags, strict=True)
    )


def lag_of(first: Classified, second: Classified, num_tests: int) -> Lag | None:
    """Find the lag at which the second difference follows the first, step by step.

    Both are whitened by their own first-order autocorrelation and by the median level before and
    since their onset, so that a common shift is no correlation. The largest cross-correlation
    within 20 steps counts beyond the normal quantile over sqrt(n), for all lags and pairs tested
    together (Bonferroni). Source: prewhitening, Box and Jenkins 1970.
    """
    steps, at, of = np.intersect1d(first.metric.steps, second.metric.steps, return_indices=True)
    a, b = _innovations(first)[at], _innovations(second)[of]
    usable = np.isfinite(a) & np.isfinite(b)
    reach = int(min(MAX_LAG.value, len(steps) // 5))
    if usable.sum() < 6 * MIN_WINDOW or not usable.all() or a.std() == 0 or b.std() == 0:
        return None
    found = {lag: _correlation(a, b, lag) for lag in range(-reach, reach + 1)}
    best = max(found, key=lambda lag: abs(found[lag]))
    tests = len(found) * max(num_tests, 1)
    limit = NormalDist().inv_cdf(1 - FAMILY_ALPHA.value / (2 * tests)) / np.sqrt(len(a) - abs(best))
    return Lag(best, found[best]) if abs(found[best]) > limit else None


def order_table(moved: Sequence[Moved]) -> Table | None:
    """Show what moved, in order of onset."""
    if not moved:
        return None
    return Table(
        id="curves.order",
        title=Text("Which moved first", "先后次序"),
        columns=(
            Column("metric", Text("metric", "指标")),
            Column("rung", Text("rung", "环节")),
            Column("class", Text("class", "类别")),
            Column("onset", Text("onset, first step", "起点（最早）"), numeric=True),
            Column("onset_last", Text("onset, last step", "起点（最晚）"), numeric=True),
            Column("after", Text("steps after the first", "晚于最先者的步数")),
            Column("order", Text("order", "次序")),
            Column("lag", Text("follows the first, step by step", "逐步跟随最先者")),
        ),
        rows=tuple(_row(m, m is moved[0]) for m in moved),
    )


def order_findings(pairing: Pairing, moved: Sequence[Moved]) -> Iterator[Finding]:
    """Yield a note on what moved first, and one on the first differing values."""
    if len(moved) > 1:
        yield _order_finding(moved)
    yield from first_difference(pairing)


def first_difference(pairing: Pairing) -> Iterator[Finding]:
    """Yield a note where the runs begin equal and part at a link of the first step.

    Only where response length, reward or entropy is recorded and equal at the first common step,
    and not equal throughout.
    """
    metrics = [
        m
        for m in pairing.training
        if m.meaning.kind in _TRAINED and not is_exact(m.name) and m.differs().any()
    ]
    step = pairing.first_step
    started = [m for m in metrics if int(m.steps[0]) == step]
    equal = [m for m in started if m.name in _STARTERS and not m.differs()[0]]
    parted = [m for m in started if m.differs()[0] and not _is_rounding(m)]
    if not equal or not parted:
        return
    parted.sort(key=lambda m: (m.meaning.rung.position, prominence(m.name)))
    names = ", ".join(m.name for m in parted[:_MAX_NAMED])
    first = parted[0]
    common = ", ".join(m.name for m in equal)
    later = min(int(m.steps[int(np.argmax(m.differs()))]) for m in equal)
    yield Finding(
        id="curves.first_difference",
        rung=Rung.CURVES,
        severity=Severity.INFO,
        title=Text(
            f"At step {step} {common} are equal and {names} are not; the former part at step "
            f"{later}",
            f"第 {step} 步时 {common} 相同，而 {names} 不同；前者到第 {later} 步才分开",
        ),
        reference=float(first.reference[0]),
        candidate=float(first.candidate[0]),
        evidence=first.evidence(step),
        why=Text(
            "From the same responses the two sides compute another loss or gradient: the first "
            "difference lies between the responses and the update, not in generation or data.",
            "两侧由相同的回复算出不同的损失或梯度：最早的差异位于回复与参数更新之间，"
            "不在生成或数据。",
        ),
        fix=Text(
            "Compare loss aggregation, micro-batches and kernels of that step (align referee).",
            "比较该步的损失聚合方式、micro-batch 划分与算子（align referee）。",
        ),
    )


def _is_rounding(metric: PairedMetric) -> bool:
    """Tell whether the first values, of a mean around 0, differ by summation alone."""
    around_0 = metric.meaning.kind in (MetricKind.SIGNED, MetricKind.LEVEL)
    return around_0 and abs(float(metric.candidate[0] - metric.reference[0])) <= ROUNDING.value


def _order_finding(moved: Sequence[Moved]) -> Finding:
    first = moved[0]
    alike = [m for m in moved[1:] if not m.surely_later]
    names = "; ".join(f"{m.classified.metric.name} ({_span(m)})" for m in moved[:_MAX_NAMED])
    names_zh = "；".join(f"{m.classified.metric.name}（{_span(m)}）" for m in moved[:_MAX_NAMED])
    more = "" if len(moved) <= _MAX_NAMED else f" + {len(moved) - _MAX_NAMED}"
    name = first.classified.metric.name
    together = ", ".join(m.classified.metric.name for m in alike[:_MAX_NAMED])
    sure = (
        Text(f"{name} moved first", f"最先变化的是 {name}")
        if not alike
        else Text(
            f"{name} moved first, or together with {together}",
            f"最先变化的是 {name}，或与 {together} 同时变化",
        )
    )
    return Finding(
        id="curves.order",
        rung=Rung.CURVES,
        severity=Severity.INFO,
        title=Text(f"{sure.en} (step {_span(first)})", f"{sure.zh}（第 {_span(first)} 步）"),
        reference=None,
        candidate=first.begin,
        evidence=first.classified.metric.evidence(first.begin),
        why=Text(
            f"By onset: {names}{more}. Where two intervals touch, the order is not known. What "
            "moves first is nearest to the cause.",
            f"按起点排序：{names_zh}{more}。区间重叠时无法判断先后。最先变化的最接近原因。",
        ),
        fix=Text(
            f"Look at step {first.begin} of both runs, at {name} and the link before it.",
            f"查看两侧第 {first.begin} 步的 {name} 及其前一环节。",
        ),
    )


def _row(moved: Moved, is_first: bool) -> tuple[Cell, ...]:
    c = moved.classified
    low, high = moved.after_first
    lag = moved.lag
    return (
        c.metric.name,
        c.metric.meaning.rung.value,
        c.kind.words,
        moved.begin,
        moved.end,
        "" if is_first else f"{low} – {high}",
        _FIRST if is_first else _LATER if moved.surely_later else _UNKNOWN,
        "" if lag is None else f"{lag.steps:+d} (r = {lag.correlation:.2f})",
    )


_FIRST, _LATER = Text("first", "最先"), Text("later", "较晚")
_UNKNOWN = Text("not known", "无法判断")


def _span(moved: Moved) -> str:
    return str(moved.begin) if moved.begin == moved.end else f"{moved.begin}–{moved.end}"


def _begin(classified: Classified) -> int:
    assert classified.onset is not None
    return classified.onset.step


def _end(classified: Classified) -> int:
    assert classified.onset is not None
    return classified.onset.step + classified.onset.uncertainty


def _innovations(classified: Classified) -> FloatArray:
    metric = classified.metric
    assert classified.onset is not None
    values = difference_of(metric)
    since = metric.steps >= classified.onset.step
    if not np.isfinite(values).all():
        return np.full(len(values), np.nan)
    level = np.zeros(len(values))
    for part in (since, ~since):
        if part.any():
            level[part] = np.median(values[part])
    rest = values - level
    whitened = rest.copy()
    whitened[1:] -= lag_one_autocorrelation(rest) * rest[:-1]
    spread = 1.4826 * float(np.median(np.abs(whitened - np.median(whitened))))
    return np.clip(whitened, -5 * spread, 5 * spread) if spread > 0 else whitened


def _correlation(first: FloatArray, second: FloatArray, lag: int) -> float:
    a, b = (first[: len(first) - lag], second[lag:]) if lag >= 0 else (first[-lag:], second[:lag])
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else 0.0
