"""How the curves were compared, said with the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from align.core.figure import Column, Table
from align.core.metric import MetricLog, MetricSeries
from align.core.text import Text
from align.curves.axis import Axis, kept, realigned
from align.curves.diverge import MIN_STEPS
from align.curves.noise import FAMILY_ALPHA
from align.curves.pair import Pairing
from align.curves.smooth import window_for


@dataclass(frozen=True, slots=True)
class Method:
    """What a user may choose.

    Args:
        axis: at equal values of which the runs are compared.
        warm_up: first steps that are left out.
        metrics: name patterns (fnmatch); all where empty.
    """

    axis: Axis = Axis.STEP
    warm_up: int = 0
    metrics: tuple[str, ...] = ()

    def applied(self, reference: MetricLog, candidate: MetricLog) -> tuple[MetricLog, MetricLog]:
        """Return both logs as they are compared.

        Raises:
            RunError: A run does not record what the axis is made of.
        """
        if self.axis is not Axis.STEP:
            candidate = realigned(reference, candidate, self.axis)
            reference = kept(reference)
        return self._chosen(reference), self._chosen(candidate)

    def _chosen(self, log: MetricLog) -> MetricLog:
        if not self.warm_up and not self.metrics:
            return log
        first = log.step_range[0] if log.step_range else 0
        series = [
            _from(s, first + self.warm_up)
            for s in log.series
            if not self.metrics or any(fnmatchcase(s.name, p) for p in self.metrics)
        ]
        return replace(log, series=tuple(s for s in series if len(s)))


DEFAULT = Method()


def method_words(pairing: Pairing, method: Method) -> Text:
    """Say smoothing, denominator, window and warm-up in one sentence."""
    window, last = window_for(pairing.num_steps), pairing.num_steps // 2
    return Text(
        f"Aligned by {method.axis.value}; curves smoothed over {window} steps; differences over "
        f"the last {last} steps, relative to the reference's level there; "
        f"{method.warm_up or 'no'} warm-up steps left out.",
        f"按{method.axis.words.zh}对齐；曲线做 {window} 步滑动平均；差异取最后 {last} 步，"
        f"相对于参考在该段的水平；剔除 {method.warm_up} 个预热步。",
    )


def method_table(pairing: Pairing, method: Method) -> Table:
    """List every choice that a verdict about curves depends on."""
    window = window_for(pairing.num_steps)
    rows: Sequence[tuple[Text, Text]] = (
        (Text("aligned by", "对齐方式"), method.axis.words),
        (
            Text("steps", "步"),
            Text(f"{pairing.num_steps} common steps", f"{pairing.num_steps} 个共有步"),
        ),
        (Text("warm-up left out", "剔除的预热步"), _plain(f"{method.warm_up}")),
        (
            Text("smoothing", "平滑"),
            Text(
                f"centred mean over {window} steps (21 at 500 steps, in proportion below)",
                f"居中滑动平均，窗口 {window} 步（500 步时为 21，更短则按比例）",
            ),
        ),
        (
            Text("what is tested", "检验对象"),
            Text(
                "log ratio of positive sizes, else the difference, over all steps, the last half, "
                "and for a late change of level",
                "恒正的量检验对数比值，其余检验差值；范围为全部步、后半程，以及后期的水平变化",
            ),
        ),
        (
            Text("denominator", "分母"),
            Text(
                "the reference's mean over the last half, or the range of its smoothed curve where "
                "the mean is less than half of that",
                "参考后半程的均值；若不足其平滑曲线极差的一半，则用极差",
            ),
        ),
        (
            Text("false alarms", "误报控制"),
            Text(
                f"{FAMILY_ALPHA.value:.0%} over all metrics (Holm), for first-order "
                f"autocorrelation; from {MIN_STEPS.value:.0f} steps on",
                f"全部指标合计 {FAMILY_ALPHA.value:.0%}（Holm），计入一阶自相关；"
                f"至少 {MIN_STEPS.value:.0f} 步",
            ),
        ),
        (
            Text("class", "类别"),
            Text(
                "change points by ruptures (kernel search, BIC penalty for autocorrelated noise); "
                "a change of level where the largest CUSUM passes a moving-block bootstrap at 1 %, "
                "else an offset if the first quarter is apart already; a step or a drift where its "
                "odds are nine to one, else what it lies between",
                "变点由 ruptures 求出（核方法，罚项按自相关噪声的 BIC）；"
                "最大 CUSUM 通过 1% 移动块自助检验时判为水平变化，否则若前四分之一已分开则为偏移；"
                "阶跃或漂移的可能性达九比一时定名，否则写明介于何者之间",
            ),
        ),
    )
    return Table(
        id="curves.method",
        title=Text("How the curves were compared", "曲线的比较方法"),
        columns=(
            Column("choice", Text("choice", "项目")),
            Column("value", Text("value", "取值")),
        ),
        rows=tuple(rows),
    )


def _plain(text: str) -> Text:
    return Text(text, text)


def _from(series: MetricSeries, first: int) -> MetricSeries:
    mask = series.steps >= first
    return replace(
        series,
        steps=series.steps[mask],
        values=series.values[mask],
        resolution=series.resolution[mask],
        lines=series.lines[mask],
    )
