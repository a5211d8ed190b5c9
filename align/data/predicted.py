"""What data sets and configurations add to what the runs show of their rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from align.core.finding import Finding, Mechanism, Severity, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.data.data_set_diff import compare_data_sets
from align.data.data_set_findings import data_set_findings
from align.data.findings import ORDER_FIX, ORDER_WHY, with_cause
from align.data.order_diff import explain
from align.data.run_order import RunOrder

_MAX_STEPS = 1000  # compared of two predicted orders: a later difference would be seen by then

Orders = tuple[RunOrder, RunOrder]


def with_data_sets(result: RungResult, orders: Orders) -> RungResult:
    """Add how the data sets differ, where both runs hold theirs; nothing where they do not."""
    reference, candidate = (order.data_set for order in orders)
    if reference is None or candidate is None:
        return result
    diff = compare_data_sets(reference, candidate)
    if diff is None or (not diff.num_common and diff.edit is None):
        return result  # nothing says that the one was made of the other
    # The same prompts at every step: rows that were never drawn. Raw data against what was made of
    # it: an instruction may stand in the template instead.
    is_mild = result.status is RungStatus.ALIGNED or reference.format != candidate.format
    severity = Severity.WARNING if is_mild else Severity.ERROR
    findings = tuple(data_set_findings(diff, reference, candidate, severity))
    if not findings:
        return result
    first = findings[0].title
    return replace(
        result,
        status=RungStatus.DIVERGED,
        findings=(*findings, *result.findings),
        summary=Text(
            f"{first.en[:1].upper()}{first.en[1:]}. {result.summary.en}",
            f"{first.zh}。{result.summary.zh}",
        ),
    )


def or_predicted(result: RungResult, orders: Orders) -> RungResult:
    """Compare predicted orders where the runs show nothing of theirs."""
    if result.status is not RungStatus.MISSING:
        return result
    predictions = [order.prediction_or_none for order in orders]
    if predictions[0] is None or predictions[1] is None:
        return result
    ours, theirs = predictions[0].order, predictions[1].order
    num_steps = min(_MAX_STEPS, 2 * min(ours.steps_per_epoch, theirs.steps_per_epoch))
    for step in range(1, num_steps + 1):
        if not np.array_equal(np.sort(ours.step(step)), np.sort(theirs.step(step))):
            assumed = bool(predictions[0].assumptions or predictions[1].assumptions)
            return _differ(orders, step, Severity.WARNING if assumed else Severity.ERROR)
    return replace(
        result,
        status=RungStatus.UNDECIDED,
        summary=Text(
            f"Both configurations give the same rows at each of the first {num_steps} steps when "
            "their samplers are replayed; the runs themselves show nothing of their prompts.",
            f"重放两侧采样器：前 {num_steps} 步的数据行完全相同；但两次运行本身没有留下 prompt。",
        ),
    )


def _differ(orders: Orders, step: int, severity: Severity) -> RungResult:
    finding = with_cause(
        Finding(
            id="data.order.predicted_divergent_step",
            rung=Rung.DATA,
            severity=severity,
            title=Text(
                f"the configurations give other rows from step {step} on",
                f"按配置推算，从第 {step} 步起两侧的数据行不同",
            ),
            reference=step,
            candidate=step,
            evidence=(),
            why=ORDER_WHY,
            fix=ORDER_FIX,
            mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
        ),
        explain(*orders, (None, None), step, None),
    )
    return RungResult(
        name=Rung.DATA,
        status=RungStatus.DIVERGED,
        summary=Text(
            f"{finding.title.en[:1].upper()}{finding.title.en[1:]}.", f"{finding.title.zh}。"
        ),
        findings=(finding,),
    )
