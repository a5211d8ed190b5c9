"""What data sets and configurations add to what the runs show of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from align.core.data_set import DataSet
from align.core.finding import Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.data.data_set_diff import compare_data_sets
from align.data.data_set_findings import data_set_findings
from align.data.findings import ORDER_FIX, ORDER_WHY, with_cause
from align.data.order_diff import explain
from align.data.run_order import RunOrder
from align.data.tokenized_findings import filters_differ, ids_beyond, rendered_otherwise
from align.data.tokenized_rows import (
    common_rows,
    compare_filters,
    compare_rendered,
    rows_beyond,
    with_questions,
)

_MAX_STEPS = 1000  # compared of two predicted orders: a later difference would be seen by then

Orders = tuple[RunOrder, RunOrder]


def with_data_sets(result: RungResult, orders: Orders) -> RungResult:
    """Add how the data sets differ, where both runs hold theirs, and what each alone has wrong."""
    beyond = tuple(_beyond(orders))
    rows, tokens = _compared(result, orders)
    added = (*beyond, *rows, *tokens)
    if not added:
        return result
    first = added[0].title
    said = {finding.id for finding in rows}
    # What the files themselves show is not said again from the dumps.
    kept = (f for f in result.findings if not (f.id == "data.rows_lost" and "data.rows" in said))
    already = {finding.id for finding in result.findings}
    return replace(
        result,
        status=RungStatus.DIVERGED,
        findings=(*beyond, *rows, *(f for f in tokens if f.id not in already), *kept),
        summary=Text(
            f"{first.en[:1].upper()}{first.en[1:]}. {result.summary.en}",
            f"{first.zh}。{result.summary.zh}",
        ),
    )


def _compared(
    result: RungResult, orders: Orders
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Compare rows as they are in the files, then as they are rendered and filtered."""
    reference, candidate = (order.data_set for order in orders)
    if reference is None or candidate is None:
        return (), ()
    sets = reference, candidate
    reference, candidate = _as_questions(reference, candidate, orders)
    diff = compare_data_sets(reference, candidate)
    if diff is None or (not diff.num_common and diff.edit is None):
        return (), ()  # nothing says that the one was made of the other
    # The same prompts at every step: rows that were never drawn. Raw data against what was made of
    # it: an instruction may stand in the template instead.
    is_mild = result.status is RungStatus.ALIGNED or reference.format != candidate.format
    severity = Severity.WARNING if is_mild else Severity.ERROR
    rows = tuple(data_set_findings(diff, reference, candidate, severity))
    return rows, tuple(_of_tokens((reference, candidate), sets, orders))


def _as_questions(
    reference: DataSet, candidate: DataSet, orders: Orders
) -> tuple[DataSet, DataSet]:
    """Read token ids as text where the other side is text; the ids' own tokenizer comes first."""
    tokenizers = [order.prompts for order in orders]
    if reference.token_ids is not None and candidate.token_ids is None:
        prompts = tokenizers[0] or tokenizers[1]
        return (with_questions(reference, prompts, candidate) if prompts else reference), candidate
    if candidate.token_ids is not None and reference.token_ids is None:
        prompts = tokenizers[1] or tokenizers[0]
        return reference, (with_questions(candidate, prompts, reference) if prompts else candidate)
    return reference, candidate


def _of_tokens(
    questions: tuple[DataSet, DataSet], sets: tuple[DataSet, DataSet], orders: Orders
) -> Iterator[Finding]:
    ours, theirs = _rendered(sets, orders)
    if (ours is None or theirs is None) and not any(o.settings.filters_length for o in orders):
        return
    rows = common_rows(*questions)
    if ours is not None and theirs is not None:
        rendered = compare_rendered(rows, ours, theirs)
        if rendered is not None:
            yield rendered_otherwise(rendered, (sets[0].source, sets[1].source))
    filters = compare_filters(rows, orders)
    if filters is not None and len(filters.only_reference) + len(filters.only_candidate):
        yield filters_differ(filters, orders)


def _rendered(sets: tuple[DataSet, DataSet], orders: Orders) -> list[Sequence[str] | None]:
    """Render both data sets; texts go through the tokenizer where the other side is made of ids."""
    of_ids = [data.token_ids is not None for data in sets]
    found: list[Sequence[str] | None] = []
    for i, data in enumerate(sets):
        prompts = orders[i].prompts or (orders[1 - i].prompts if of_ids[i] else None)
        texts = None if prompts is None else prompts.rendered(data)
        if prompts is not None and texts is not None and of_ids[1 - i] and not of_ids[i]:
            texts = prompts.told_again(texts)
        found.append(texts)
    return found


def _beyond(orders: Orders) -> Iterator[Finding]:
    for order, side in zip(orders, (Side.REFERENCE, Side.CANDIDATE), strict=True):
        data, size = order.data_set, order.vocabulary_size
        if data is None or data.token_ids is None:
            continue
        if size is None and order.prompts is not None:
            size = order.prompts.vocabulary_size
        if size is not None and len(rows := rows_beyond(data, size)):
            yield ids_beyond(data, rows, size, side)


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
