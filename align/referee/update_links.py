"""Links from log_probs to the loss, the gradient norm and the learning rate of a step's updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from align.core.config_value import EffectiveConfig
from align.core.finding import Side
from align.core.text import Text
from align.curves.logged_schedule import logged_rates, read_as_declared
from align.frameworks.declared_schedule import declared_schedule
from align.referee.examine import Examined
from align.referee.gradient_norms import SAME_NORM
from align.referee.link import Link, LinkVerdict, not_recorded
from align.referee.objective import Objective
from align.referee.recompute import (
    APPROX_KL,
    CLIPPED,
    DUAL_CLIPPED,
    KL,
    NORM,
    POLICY,
    QUANTITIES,
    TOTAL,
)
from align.referee.report import Report
from align.referee.update import Update
from dumps.store.run_data import RunData

_RATE = "actor/lr"


def loss_links(found: Examined | Text, judged: Sequence[Report]) -> Iterator[Link]:
    """Yield a link a reported number, at its first misfit or else at the first report.

    Args:
        judged: the reports of one step.
    """
    if isinstance(found, Text):
        yield Link("loss", Text("-", "-"), LinkVerdict.NOT_RECORDED, note=found)
        return
    for name in QUANTITIES:
        link = _loss_link(name, found, judged)
        if link is not None:
            yield link


def _loss_link(name: str, found: Examined, judged: Sequence[Report]) -> Link | None:
    amounts = [(r, a[name]) for r in judged if name in (a := r.amounts(found.objective))]
    if not amounts:
        return None
    wrong = [(report, amount) for report, amount in amounts if not report.meets(name, amount)]
    report, amount = (wrong or amounts)[0]
    note = _ASSUMED if found.assumed else report.place
    if wrong:
        count, of = len(wrong), len(amounts)
        what = _UNKNOWN
        if found.cause is not None:
            instead = found.cause.what
            what = Text(f"the run {instead.en}", f"该运行{instead.zh}")
        note = Text(f"{count} of {of} updates; {what.en}", f"{of} 次更新中有 {count} 次；{what.zh}")
    return Link(
        name,
        declared_formula(name, found.objective),
        LinkVerdict.DIFFERS if wrong else LinkVerdict.AS_DECLARED,
        report.values[name],
        amount.value,
        amount.rounding + report.resolution.get(name, 0.0),
        note,
    )


def declared_formula(name: str, objective: Objective) -> Text:
    """Say what the configuration declares of one number."""
    clip = f"[{1 - objective.clip_low:g}, {1 + objective.clip_high:g}]"
    averaged = f"{objective.aggregation.value} over the {objective.normalisation.value}"
    total = f"pg_loss + {objective.kl_coef:g} KL - {objective.entropy_coef:g} entropy"
    ratio = "sequence" if objective.gspo else "token"
    shown = {
        POLICY: f"{ratio} ratio in {clip}, {averaged}",
        KL: f"{objective.kl_type}, {averaged}",
        TOTAL: total,
        CLIPPED: f"outside {clip}",
        DUAL_CLIPPED: f"above {objective.dual:g}" if objective.dual else "no dual clip",
        APPROX_KL: "mean of old - new log_probs",
    }[name]
    return Text(shown, shown)


def norm_link(updates: Sequence[Update]) -> Link:
    """Hold the reported gradient norm against that of the gradients."""
    pairs = [
        (u, u.reported[NORM], u.norm_of_gradients)
        for u in updates
        if u.norm_of_gradients is not None and NORM in u.reported
    ]
    if not pairs:
        return not_recorded(NORM, _NORM, _NEEDS_NORM)
    update, reported, own = max(pairs, key=lambda pair: abs(pair[1] - pair[2]))
    tolerance = SAME_NORM.value * own
    agrees = abs(reported - own) <= tolerance
    return Link(
        NORM,
        _NORM,
        LinkVerdict.AS_DECLARED if agrees else LinkVerdict.DIFFERS,
        reported,
        own,
        tolerance,
        Text(f"update {update.number}", f"第 {update.number} 次更新"),
    )


def rate_link(run: RunData, config: EffectiveConfig, step: int) -> Link:
    """Hold the logged learning rate of a step against the declared schedule."""
    series = logged_rates(run)
    declared = declared_schedule(config.values, config.framework, logged=True)
    if series is None or step not in series.steps.tolist():
        return not_recorded(_RATE, Text("-", "-"), Text("needs actor/lr", "需要 actor/lr"))
    if declared is None:
        return Link(_RATE, Text("-", "-"), LinkVerdict.UNKNOWN, note=_NO_SCHEDULE)
    laid = read_as_declared(Side.CANDIDATE, series, declared)
    at = series.steps.tolist().index(step)
    recorded = float(laid.series.values[at])
    least, greatest = float(laid.least[at]), float(laid.greatest[at])
    nearest = min(max(recorded, least), greatest)
    return Link(
        _RATE,
        Text(declared.style, declared.style),
        LinkVerdict.DIFFERS if laid.departs[at] else LinkVerdict.AS_DECLARED,
        recorded,
        nearest,
        float(laid.tolerance[at]),
    )


_UNKNOWN = Text("no formula tried gives them all", "所尝试的公式都不能给出全部数值")
_ASSUMED = Text(
    "log_probs of the update taken to be old_log_probs (one update a step)",
    "以 old_log_probs 作为更新时的 log_probs（每步一次更新）",
)
_NORM = Text("L2 of all gradients, before clipping", "裁剪前全部梯度的 L2 范数")
_NEEDS_NORM = Text(
    "needs the updates and the norm of their gradients", "需要各次更新及其梯度的范数"
)
_NO_SCHEDULE = Text("the schedule is not known in full", "学习率曲线不完整")
