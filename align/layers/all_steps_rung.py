"""What comparing every step says, as a rung's result with its tables."""

from __future__ import annotations

import math

from align.core.figure import Cell, Column, Table
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.layers.all_steps import AddressErrors, AllSteps, Departure
from align.layers.not_comparable import not_comparable
from align.layers.start import Pair, Start
from align.layers.step_errors import FORWARD
from dumps.store.tensor_records import Phase

_COLUMNS = (
    Column("first_step", Text("departs at step", "开始偏离的 step"), numeric=True),
    Column("steps_beyond", Text("steps beyond", "超限 step 数"), numeric=True),
    Column("steps", Text("steps", "step 数"), numeric=True),
    Column("worst", Text("largest error", "最大误差"), numeric=True),
    Column("worst_step", Text("at step", "所在 step"), numeric=True),
    Column("explained", Text("explained up to", "可解释的上限"), numeric=True),
    Column("phase", Text("phase", "阶段")),
    Column("module", Text("module or parameter", "模块或参数")),
)


def result_of(found: AllSteps, reference: str, candidate: str) -> RungResult:
    """Return the result.

    Args:
        reference, candidate: labels of the runs.
    """
    if not found.num_records:
        return not_comparable(Rung.FORWARD, Pair(Start.NOT_RECORDED))
    departure, tables = found.departure, (_addresses(found), _heat_map(found))
    counted = (
        f"{found.num_records:,} pairs of tensors of {len(found.steps)} steps compared",
        f"共比较 {len(found.steps)} 个 step 的 {found.num_records:,} 对张量",
    )
    alone, other_tokens = found.not_compared
    left = Text("", "")
    if alone or other_tokens:
        left = Text(
            f" Not compared: {other_tokens:,} over other tokens, {alone:,} on one side alone.",
            f"未比较：token 集合不同 {other_tokens:,} 个，只在一侧有记录 {alone:,} 个。",
        )
    if departure is None:
        summary = Text(
            f"{counted[0]}; no error is larger than rounding and what it is computed from "
            f"explain.{left.en}",
            f"{counted[1]}；所有误差都可由舍入及其输入的误差解释。{left.zh}",
        )
        return RungResult(Rung.FORWARD, RungStatus.ALIGNED, summary, tables=tables)
    finding = _finding(departure, reference, candidate)
    summary = Text(
        f"{counted[0]}; {finding.title.en}.{left.en}",
        f"{counted[1]}；{finding.title.zh}。{left.zh}",
    )
    return RungResult(finding.rung, RungStatus.DIVERGED, summary, (finding,), tables=tables)


def _finding(departure: Departure, reference: str, candidate: str) -> Finding:
    phase, name, update = departure.key
    rung = Rung.FORWARD if phase in FORWARD else Rung.BACKWARD
    key = f"step {departure.step} {phase} {name}, update {update}"
    return Finding(
        id=f"{rung.value}.first_departing_step",
        rung=rung,
        severity=Severity.ERROR,
        title=Text(
            f"step {departure.step} is the first in which an error departs, at {name} ({phase}): "
            f"{departure.relative:.2g} where {departure.limit:.2g} is explained",
            f"误差最早在第 {departure.step} 步偏离，位于 {name}（{phase}）："
            f"{departure.relative:.2g}，而可解释的上限为 {departure.limit:.2g}",
        ),
        reference=1.0,
        candidate=departure.gain if math.isfinite(departure.gain) else None,
        evidence=(
            Evidence(reference, Side.REFERENCE, key=key),
            Evidence(candidate, Side.CANDIDATE, key=key),
        ),
        why=Text(
            "In this step it was computed from the same tokens, and neither rounding nor the "
            "errors of the weights and of what precedes it make it this large.",
            "该步使用相同的 token；舍入、权重误差以及在它之前的误差都不足以解释这一误差。",
        ),
        fix=Text(
            f"Record full tensors of {name} at step {departure.step} on both sides, and compare "
            "what changed on either side at that step.",
            f"在两侧记录第 {departure.step} 步 {name} 的完整张量，并核对该步前后两侧有何变化。",
        ),
        mechanism=Mechanism(rung, Strength.SEMANTIC),
    )


def _addresses(found: AllSteps) -> Table:
    """Return a row an address."""
    title = Text("Error of each address over all steps", "各地址在全部 step 上的误差")
    return Table("step_errors", title, _COLUMNS, tuple(map(_row, found.addresses)))


def _row(each: AddressErrors) -> tuple[Cell, ...]:
    phase, name, update = each.key
    numbered = name if not update else f"{name}, update {update}"
    limit = None if math.isnan(each.limit) else each.limit
    judged = limit is not None or phase == Phase.PARAMETER
    beyond = each.beyond if judged else None
    return (
        *(each.first, beyond, each.count, each.worst, each.worst_step),
        *(limit, phase, numbered),
    )


def _heat_map(found: AllSteps) -> Table:
    """Return a row an address and a column a group of steps: the largest error there."""
    title = Text("Largest error by address and step", "各地址、各 step 的最大误差")
    names = [f"{first}" if first == last else f"{first}–{last}" for first, last in found.columns]
    columns = (
        Column("phase", Text("phase", "阶段")),
        Column("module", Text("module or parameter", "模块或参数")),
        *(Column(f"steps_{name}", Text(name, name), numeric=True) for name in names),
    )
    rows = tuple(
        (each.key[0], each.key[1], *(None if math.isnan(v) else v for v in each.by_columns))
        for each in found.addresses
    )
    return Table("step_heat_map", title, columns, rows)
