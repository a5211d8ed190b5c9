"""What shape trainer - rollout log_probs have in both runs, for the report's forward rung.

The referee says it of one step when it is asked; here it is said of the first recorded step of each
run, where nothing has been updated differently yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from align.config.normalise import effective
from align.core.figure import Column, Table
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.rung import Rung, RungResult
from align.core.text import Text
from align.referee.link import Link, LinkVerdict
from align.referee.probability_link import NAME, UNNAMED, probability_link
from align.referee.step_batch import batch_steps, log_prob_batch
from dumps.store.run_data import RunData


@dataclass(frozen=True, slots=True)
class _Seen:
    side: Side
    step: int
    link: Link


def with_log_probs(result: RungResult, reference: RunData, candidate: RunData) -> RungResult:
    """Add a table of both runs' log_probs, and a note for each shape that has a name.

    Notes only: each run is held against its own configuration, so a shape that both runs have is no
    difference between them, and the status stays what the layers say.
    """
    runs = ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    seen = [found for side, run in runs if (found := _first(side, run)) is not None]
    if not seen:
        return result
    findings = tuple(_finding(each) for each in _named(seen))
    return replace(
        result, findings=(*result.findings, *findings), tables=(*result.tables, _table(seen))
    )


def _first(side: Side, run: RunData) -> _Seen | None:
    """Examine the first step that records both log_probs; None of a run without."""
    steps = batch_steps(run)
    batch = log_prob_batch(run, steps[0]) if steps else None
    if batch is None or batch.get("old_log_probs", "rollout_log_probs", "response_mask") is None:
        return None
    link = probability_link(batch, effective(run.configs, run.run.manifest))
    return None if link.recorded is None else _Seen(side, steps[0], link)


def _named(seen: list[_Seen]) -> Iterator[_Seen]:
    for each in seen:
        note = each.link.note
        if each.link.verdict is LinkVerdict.DIFFERS and note is not None and note != UNNAMED:
            yield each


def _table(seen: list[_Seen]) -> Table:
    return Table(
        id="forward.log_probs",
        title=Text("Trainer's log_probs beside the rollout engine's", "训练侧与推理侧的 log_prob"),
        columns=(
            Column("run", Text("run", "运行")),
            Column("step", Text("step", "步"), numeric=True),
            Column("declared", Text("declared", "声明")),
            Column("apart", Text("mean |difference|, nats", "平均绝对差（nat）"), numeric=True),
            Column("limit", Text("explained by rounding", "舍入可解释"), numeric=True),
            Column("shape", Text("shape", "形状")),
        ),
        rows=tuple(
            (
                _SIDES[each.side],
                each.step,
                each.link.declared,
                each.link.recorded,
                each.link.tolerance,
                each.link.note or _ROUNDING,
            )
            for each in seen
        ),
    )


def _finding(seen: _Seen) -> Finding:
    side, note = _SIDES[seen.side], seen.link.note
    assert note is not None
    apart = seen.link.recorded
    return Finding(
        id=f"forward.log_prob_shape.{seen.side.value}",
        rung=Rung.FORWARD,
        severity=Severity.INFO,
        title=Text(
            f"In the {side.en}, trainer - rollout log_probs of step {seen.step}: {note.en}",
            f"{side.zh}第 {seen.step} 步训练侧与推理侧的 log_prob：{note.zh}",
        ),
        reference=apart if seen.side is Side.REFERENCE else None,
        candidate=apart if seen.side is Side.CANDIDATE else None,
        evidence=(
            Evidence(
                f"trainer_inputs of step {seen.step}",
                seen.side,
                key="old_log_probs - rollout_log_probs",
                values=() if apart is None else (apart,),
            ),
        ),
        why=Text(
            "Of equal weights and settings the two differ by rounding, on both sides and at all "
            f"tokens alike ({NAME}).",
            "权重与设置相同时，两者只差舍入误差，且各 token 两个方向均匀分布。",
        ),
        fix=Text(
            f"See every link of this step: `align referee RUN --step {seen.step}`.",
            f"查看该步的每个环节：`align referee RUN --step {seen.step}`。",
        ),
    )


_SIDES = {
    Side.REFERENCE: Text("reference", "参考"),
    Side.CANDIDATE: Text("candidate", "被测"),
}
_ROUNDING = Text("rounding", "舍入")
