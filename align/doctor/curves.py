"""What one run's metrics show without another run to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from align.core.finding import Evidence, Finding, Severity, Side
from align.core.metric import MetricLog, MetricSeries
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.collapse import COLLAPSED
from align.curves.pair import value_evidence
from align.curves.shift import relative_to
from align.curves.smooth import MIN_WINDOW, smooth, window_for
from align.frameworks.vocabulary import MetricKind, metric_meaning

_NOT_TRAINING = (MetricKind.PERFORMANCE, MetricKind.BOOKKEEPING, MetricKind.UNKNOWN)
_MAX_NAMED = 6
_COLLAPSING = ("critic/score/mean", "critic/rewards/mean", "response_length/mean")
NUM_SIGMA = Threshold(4.0, source="a fall beyond what the steps scatter around their own average")
AT_LIMIT = Threshold(0.99, source="all but rounding of the responses are cut off")
ENTROPY_LOST = Threshold(
    0.1, source="DAPO (arXiv 2503.14476) shows entropy near 0 as the sign of collapsed exploration"
)


def curve_findings(metrics: MetricLog) -> Iterator[Finding]:
    """Yield what is wrong with a run's own curves."""
    checks: tuple[Callable[[MetricLog], Iterator[Finding]], ...] = (
        _nonfinite,
        _collapsed,
        _no_signal,
        _cut_off,
        _entropy,
    )
    for check in checks:
        yield from check(metrics)


def _nonfinite(metrics: MetricLog) -> Iterator[Finding]:
    events = []
    for series in metrics.series:
        meaning, bad = metric_meaning(series.name), ~np.isfinite(series.values)
        if meaning.kind in _NOT_TRAINING or meaning.rung is Rung.EVALS:
            continue
        if bad.any() and not bad.all():  # never a number: not computed in this run
            at = int(np.argmax(bad))
            events.append((int(series.steps[at]), meaning.rung.position, series.name, series))
    if not events:
        return
    events.sort(key=lambda event: event[:3])
    step, _, name, first = events[0]
    order = ", ".join(f"{e[2]} ({e[0]})" for e in events[:_MAX_NAMED])
    more = f" + {len(events) - _MAX_NAMED}" if len(events) > _MAX_NAMED else ""
    yield _finding(
        "nonfinite",
        Severity.ERROR,
        Text(
            f"{name} is the first metric to become NaN or infinite, at step {step}",
            f"最先变为 NaN 或无穷的指标是 {name}（第 {step} 步）",
        ),
        [value_evidence(e[3], e[0], Side.BOTH) for e in events[:_MAX_NAMED]],
        float(first.values[np.searchsorted(first.steps, step)]),
        Text(
            f"In order of first step: {order}{more}. What follows is a consequence.",
            f"按首次出现的步排序：{order}{more}。之后的异常都是其后果。",
        ),
        Text(
            f"Look at the inputs of step {step}, and resume from the checkpoint before it: the "
            "same step again means the data, another step means numerics.",
            f"检查第 {step} 步的输入，并从该步之前的检查点续训：若在同一步重现，则与数据有关；"
            "若出现在别的步，则与数值计算有关。",
        ),
    )


def _collapsed(metrics: MetricLog) -> Iterator[Finding]:
    for name in _COLLAPSING:
        series = _finite(metrics.get(name))
        if series is None or len(series) < 4 * MIN_WINDOW:
            continue
        window = window_for(len(series))
        level = smooth(series.values, window)
        top = int(np.argmax(level[:-window]))
        before, after = float(level[top]), float(series.values[-window:].mean())
        scatter = float(np.median(np.abs(series.values - level))) * 1.4826 / np.sqrt(window)
        if before - after <= NUM_SIGMA.value * scatter:
            continue
        share = (before - after) / (relative_to(before, series.values[: top + 1]) or np.nan)
        if not share >= COLLAPSED.value:
            continue
        step = int(series.steps[top])
        yield _finding(
            "collapse",
            Severity.WARNING,
            Text(
                f"{name} lost {share:.0%} of its best level: {before:.4g} around step {step}, "
                f"{after:.4g} at the end",
                f"{name} 从最好水平下降了 {share:.0%}：第 {step} 步附近为 {before:.4g}，"
                f"结束时为 {after:.4g}",
            ),
            [value_evidence(series, s, Side.BOTH) for s in (step, int(series.steps[-1]))],
            after,
            Text(
                "One run alone does not tell whether this is a fault: shorter responses can be "
                "what the reward asks for.",
                "仅凭一次运行无法判断是否异常：回复变短也可能正是奖励所要求的。",
            ),
            Text(
                "Compare with a reference run (align curves diff); read responses from before "
                "and after; check that every response ends in an end token.",
                "与参考运行比较（align curves diff）；查看前后的回复文本；"
                "检查每条回复是否都有结束符。",
            ),
        )


def _no_signal(metrics: MetricLog) -> Iterator[Finding]:
    high, low = metrics.get("critic/advantages/max"), metrics.get("critic/advantages/min")
    if high is None or low is None or len(high) < 2 or (high.values != 0).any():
        return
    if (low.values != 0).any():
        return
    yield _finding(
        "no_advantage",
        Severity.WARNING,
        Text(
            f"every advantage is 0 at all {len(high)} steps: nothing is learned",
            f"全部 {len(high)} 步的 advantage 都为 0：没有学到任何东西",
        ),
        [value_evidence(high, int(high.steps[-1]), Side.BOTH)],
        0.0,
        Text(
            "All responses of a group have the same score, so the group's mean takes it away. "
            "The reward rule, or the answer format it expects, does not fit the responses.",
            "同组回复得分全部相同，减去组内均值后为 0。奖励规则或其要求的答案格式与回复不符。",
        ),
        Text(
            "Score some of the printed responses by hand; check the task's rule and max length.",
            "手工核对几条回复的得分；检查任务所用的规则与最大长度。",
        ),
    )


def _cut_off(metrics: MetricLog) -> Iterator[Finding]:
    series = _finite(metrics.get("response_length/clip_ratio"))
    if series is None or len(series) < MIN_WINDOW:
        return
    if (series.values[-MIN_WINDOW:] < AT_LIMIT.value).any():
        return
    yield _finding(
        "cut_off",
        Severity.WARNING,
        Text(
            f"all responses of the last {MIN_WINDOW} steps are cut off at the length limit",
            f"最后 {MIN_WINDOW} 步的所有回复都因达到长度上限而被截断",
        ),
        [value_evidence(series, int(series.steps[-1]), Side.BOTH)],
        float(series.values[-1]),
        Text(
            "The model no longer writes its end token, or the limit is too short for the task.",
            "模型不再输出结束符，或长度上限对该任务过短。",
        ),
        Text(
            "Read some responses: endless text means a lost end token (align tokenizer diff), "
            "cut answers mean a short limit.",
            "查看几条回复：若无休止地输出，说明结束符丢失（align tokenizer diff）；"
            "若答案被截断，说明上限过短。",
        ),
    )


def _entropy(metrics: MetricLog) -> Iterator[Finding]:
    series = _finite(metrics.get("actor/entropy"))
    if series is None or len(series) < 4 * MIN_WINDOW:
        return
    window = window_for(len(series))
    first, last = float(series.values[:window].mean()), float(series.values[-window:].mean())
    if first <= 0 or last > ENTROPY_LOST.value * first:
        return
    yield _finding(
        "entropy",
        Severity.INFO,
        Text(
            f"the policy's entropy fell from {first:.3g} to {last:.3g} nats a token",
            f"策略熵从 {first:.3g} 降至 {last:.3g} nats/token",
        ),
        [value_evidence(series, int(series.steps[-1]), Side.BOTH)],
        last,
        Text(
            "The responses of a group become alike, and advantages vanish with their spread.",
            "同组回复趋于相同，advantage 随之消失。",
        ),
        Text(
            "Watch the share of groups with one score; raise clip_ratio_high or the entropy "
            "coefficient if the reward stops rising.",
            "关注得分全同的组所占比例；若 reward 不再上升，可提高 clip_ratio_high 或熵系数。",
        ),
    )


def _finite(series: MetricSeries | None) -> MetricSeries | None:
    """Return the series without what is not a number; None where nothing is left."""
    if series is None or not (kept := np.isfinite(series.values)).any():
        return None
    arrays = (series.steps, series.values, series.resolution, series.lines)
    return MetricSeries(series.name, series.spelling, series.source, *(a[kept] for a in arrays))


def _finding(
    name: str,
    severity: Severity,
    title: Text,
    evidence: list[Evidence],
    value: float,
    why: Text,
    fix: Text,
) -> Finding:
    return Finding(
        id=f"doctor.curves.{name}",
        rung=Rung.CURVES,
        severity=severity,
        title=title,
        reference=None,
        candidate=value,
        evidence=tuple(evidence),
        why=why,
        fix=fix,
    )
