"""Relations between one run's own metrics that hold whatever the run learns.

Each is checked on both sides. One that a single side breaks is a warning: something there is
computed otherwise than it says. One that both break is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from align.core.config_value import ConfigLeaf
from align.core.finding import Finding, Severity, Side
from align.core.metric import MetricLog, MetricSeries
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.curves.constant import MIN_STUCK_STEPS
from align.curves.pair import BoolArray, FloatArray, IntArray, value_evidence

ON_POLICY = "derived.on_policy"
Values = Mapping[str, ConfigLeaf]

ROUNDED_KL = Threshold(
    2.0**-9, source="half a bfloat16 step of a log-probability near -1; a mean is far smaller"
)
ROUNDED_LOSS = Threshold(2.0**-20, source="one float32 step of a log-probability near -16")
SUM_ERROR = Threshold(1e-3, source="rule means printed with three decimals")
_RULES = ("rewards/*/mean", "*_rewards/mean", "critic/score/*_score", "reward/*")
_TOTALS = ("critic/rewards/mean", "critic/score/mean", "reward")


@dataclass(frozen=True, slots=True)
class Broken:
    """A relation that does not hold.

    Args:
        name: of the relation.
        step: first step it is broken at.
        num, of: at how many of so many steps.
        series: the metric that breaks it.
        value: of that metric at that step.
        words: what holds instead of what.
    """

    name: str
    step: int
    num: int
    of: int
    series: MetricSeries
    value: float
    words: Text


def broken_relations(log: MetricLog, values: Values) -> tuple[Broken, ...]:
    """Check every relation of one run.

    Args:
        values: effective configuration of the run; empty where it is not known.
    """
    checks: tuple[Callable[[MetricLog, Values], Iterator[Broken]], ...] = (
        _on_policy,
        _no_advantage,
        _sum_of_rules,
        _clip_ratio,
    )
    with np.errstate(all="ignore"):
        return tuple(broken for check in checks for broken in check(log, values))


def relation_findings(
    reference: MetricLog, candidate: MetricLog, ours: Values, theirs: Values
) -> Iterator[Finding]:
    """Yield a warning for each relation one side breaks, a note for each that both break."""
    found = {
        Side.REFERENCE: {b.name: b for b in broken_relations(reference, ours)},
        Side.CANDIDATE: {b.name: b for b in broken_relations(candidate, theirs)},
    }
    for name in sorted({*found[Side.REFERENCE], *found[Side.CANDIDATE]}):
        sides = [side for side, of_side in found.items() if name in of_side]
        yield _finding([(side, found[side][name]) for side in sides])


def _on_policy(log: MetricLog, values: Values) -> Iterator[Broken]:
    """One update per rollout: the ratio is 1, so nothing is clipped and ppo_kl is rounding."""
    if values.get(ON_POLICY) is not True:
        return
    for key, limit in (("actor/pg_clipfrac", 0.0), ("actor/ppo_kl", ROUNDED_KL.value)):
        series = log.get(key)
        if series is None:
            continue
        mask = np.abs(series.values) > np.maximum(limit, series.resolution)
        yield from _broken(
            "on_policy",
            series,
            mask,
            Text(
                f"the configuration makes one update per rollout, so the ratio is 1 and {key} 0",
                f"配置为每次 rollout 只更新一次，比值应为 1，{key} 应为 0",
            ),
        )


def _no_advantage(log: MetricLog, _: Values) -> Iterator[Broken]:
    """Where every advantage is 0 the policy loss is 0: only KL and entropy are left."""
    high, low = log.get("critic/advantages/max"), log.get("critic/advantages/min")
    for key in ("actor/pg_loss", "actor/pg_clipfrac"):
        loss = log.get(key)
        if high is None or low is None or loss is None:
            return
        at_loss, (top, bottom) = _common(loss, high, low)[1:]
        nothing = (top == 0) & (bottom == 0)
        if not nothing.any():
            return
        limit = np.maximum(ROUNDED_LOSS.value, loss.resolution[at_loss])
        mask = nothing & (np.abs(loss.values[at_loss]) > limit)
        yield from _broken(
            "no_advantage",
            loss,
            _spread(mask, at_loss, len(loss)),
            Text(
                f"every advantage of the step is 0, so {key} must be 0 (KL and entropy are left)",
                f"该步所有 advantage 均为 0，{key} 应为 0（只剩 KL 与熵）",
            ),
            of=int(nothing.sum()),
        )


def _sum_of_rules(log: MetricLog, _: Values) -> Iterator[Broken]:
    """The reward is a fixed combination of its rules: weights fitted once hold at every step."""
    total = next((s for name in _TOTALS if (s := log.get(name)) is not None), None)
    rules = [
        s
        for s in log.series
        if any(fnmatchcase(s.name, pattern) for pattern in _RULES) and s is not total
    ]
    if total is None or len(rules) < 2:
        return
    steps, at_total, columns = _common(total, *rules)
    if len(steps) < 3 * len(rules) + 3:
        return
    target, parts = total.values[at_total], np.stack(columns, axis=1)
    usable = np.isfinite(target) & np.isfinite(parts).all(axis=1)
    if usable.sum() < 3 * len(rules) + 3:
        return
    scale = max(float(np.abs(target[usable]).max()), 1.0)
    weights: FloatArray = np.ones(len(rules))
    if np.abs(target - parts @ weights)[usable].max() > SUM_ERROR.value * scale:
        weights = _robust_weights(parts[usable], target[usable])
    mask = usable & (np.abs(target - parts @ weights) > 2 * SUM_ERROR.value * scale)
    if 0 < mask.sum() <= usable.sum() / 2:
        names = " + ".join(f"{w:.3g} {r.spelling}" for w, r in zip(weights, rules, strict=True))
        yield from _broken(
            "sum_of_rules",
            total,
            _spread(mask, at_total, len(total)),
            Text(
                f"at all other steps {total.spelling} is {names}",
                f"其余各步 {total.spelling} 等于 {names}",
            ),
            of=int(usable.sum()),
        )


def _robust_weights(parts: FloatArray, target: FloatArray) -> FloatArray:
    """Fit weights [k] to most steps: least squares, again without the worst half."""
    kept = np.ones(len(target), dtype=np.bool_)
    weights: FloatArray = np.zeros(parts.shape[1])
    for _ in range(10):
        weights = np.asarray(np.linalg.lstsq(parts[kept], target[kept], rcond=None)[0], np.float64)
        errors = np.abs(target - parts @ weights)
        kept = errors <= np.median(errors)
    return weights


def _clip_ratio(log: MetricLog, _: Values) -> Iterator[Broken]:
    """A batch whose mean length is its longest has all responses at one length."""
    mean, longest = log.get("response_length/mean"), log.get("response_length/max")
    clipped = log.get("response_length/clip_ratio")
    if mean is None or longest is None or clipped is None:
        return
    steps, at, (means, tops) = _common(clipped, mean, longest)
    if not len(steps):
        return
    cap = float(tops.max())
    # The cap is known where the longest response is that long at many steps.
    if (tops == cap).sum() < MIN_STUCK_STEPS.value:
        return
    full = (means == cap) & (tops == cap)
    mask = full & (clipped.values[at] < 1)
    yield from _broken(
        "clip_ratio",
        clipped,
        _spread(mask, at, len(clipped)),
        Text(
            f"every response has {cap:g} tokens, the limit, so {clipped.spelling} must be 1",
            f"所有回复均为上限 {cap:g} 个 token，{clipped.spelling} 应为 1",
        ),
        of=int(full.sum()),
    )
    hit = tops == cap
    none = hit & (clipped.values[at] == 0)
    if hit.sum() >= MIN_STUCK_STEPS.value and none.sum() == hit.sum():
        yield from _broken(
            "clip_ratio",
            clipped,
            _spread(none, at, len(clipped)),
            Text(
                f"the longest response has {cap:g} tokens, the limit, at these steps, so "
                f"{clipped.spelling} must be above 0 (or counts against another limit)",
                f"这些步中最长回复为上限 {cap:g} 个 token，{clipped.spelling} 应大于 0"
                "（或其依据的上限不同）",
            ),
            of=int(hit.sum()),
        )


def _common(
    first: MetricSeries, *others: MetricSeries
) -> tuple[IntArray, IntArray, tuple[FloatArray, ...]]:
    """Return the common steps, their places in ``first`` and the others' values there."""
    steps = first.steps
    for other in others:
        steps = np.intersect1d(steps, other.steps)
    places = np.searchsorted(first.steps, steps)
    return steps, places, tuple(o.values[np.searchsorted(o.steps, steps)] for o in others)


def _spread(mask: BoolArray, places: IntArray, num: int) -> BoolArray:
    whole: BoolArray = np.zeros(num, dtype=np.bool_)
    whole[places] = mask
    return whole


def _broken(
    name: str, series: MetricSeries, mask: BoolArray, words: Text, of: int | None = None
) -> Iterator[Broken]:
    if mask.any():
        at = int(np.argmax(mask))
        num = int(mask.sum())
        yield Broken(
            name,
            int(series.steps[at]),
            num,
            len(series) if of is None else of,
            series,
            float(series.values[at]),
            words,
        )


def _finding(found: list[tuple[Side, Broken]]) -> Finding:
    side, first = found[0]
    both = len(found) == 2
    where = _WHERE[Side.BOTH if both else side]
    values = {s: b.value for s, b in found}
    return Finding(
        id=f"curves.relation.{first.name}",
        rung=Rung.CURVES,
        severity=Severity.INFO if both else Severity.WARNING,
        title=Text(
            f"{where.en}: {first.words.en}; it is {first.value:.4g} at step {first.step} "
            f"({first.num} of {first.of} steps)",
            f"{where.zh}：{first.words.zh}；第 {first.step} 步却为 {first.value:.4g}"
            f"（{first.of} 步中有 {first.num} 步）",
        ),
        reference=values.get(Side.REFERENCE),
        candidate=values.get(Side.CANDIDATE),
        evidence=tuple(value_evidence(b.series, b.step, s) for s, b in found),
        why=Text(
            "This relation follows from what the metrics are, whatever is learned."
            + (" Both runs break it." if both else " The other run keeps it, or lacks it."),
            "该关系由指标本身的含义决定，与学到什么无关。"
            + ("两侧都不成立。" if both else "另一侧成立，或没有记录。"),
        ),
        fix=FIXES[first.name],
    )


_WHERE = {
    Side.REFERENCE: Text("In the reference", "参考"),
    Side.CANDIDATE: Text("In the candidate", "被测"),
    Side.BOTH: Text("In both runs", "两侧"),
}
FIXES = {
    "on_policy": Text(
        "Give old and new log-probabilities one micro-batch size (rollout.log_prob_micro_batch_size"
        "_per_gpu = actor.ppo_micro_batch_size_per_gpu in verl), then look at dropout and kernels.",
        "让新旧 log_prob 使用相同的 micro-batch 大小（verl 中 rollout.log_prob_micro_batch_size"
        "_per_gpu = actor.ppo_micro_batch_size_per_gpu），再检查 dropout 与算子。",
    ),
    "no_advantage": Text(
        "Recompute the loss of that step from its advantages (align referee).",
        "用该步的 advantage 重新计算损失（align referee）。",
    ),
    "sum_of_rules": Text(
        "Score the responses of that step with each rule alone.",
        "对该步的回复分别用每条规则打分。",
    ),
    "clip_ratio": Text(
        "Compare what the share counts: responses at the limit, or at the longest of the batch.",
        "核对该比例的定义：达到长度上限的回复，还是达到本批最长长度的回复。",
    ),
}
