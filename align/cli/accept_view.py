"""An acceptance judgement as text for a terminal."""

from __future__ import annotations

from align.acceptance.judgement import Judgement
from align.acceptance.words import (
    amount,
    decision_sentence,
    formula_name,
    noise_sentence,
    outcome_name,
    power_sentence,
)
from align.cli.rung_view import table_lines
from align.core.figure import Column, Table
from align.core.text import Text


def as_text(judgement: Judgement, lang: str) -> str:
    """Return the decision, a line a clause, what repeats and noise allow, and the formulas."""
    lines = [decision_sentence(judgement).in_language(lang), ""]
    lines += table_lines(_table(judgement), lang)
    for sentence in (power_sentence(judgement), noise_sentence(judgement)):
        lines += ["", sentence.in_language(lang)]
    for result in judgement.results:
        name = formula_name(result.criterion.name).in_language(lang)
        if result.task is None:
            lines += ["", f"{name}: {result.criterion.formula.in_language(lang)}"]
        if result.remark is not None:
            lines.append(f"  {result.remark.in_language(lang)}")
    return "\n".join(lines)


def _table(judgement: Judgement) -> Table:
    return Table(
        id="acceptance.clauses",
        title=Text(f"Policy {judgement.policy.name}", f"判据 {judgement.policy.name}"),
        columns=(
            Column("clause", Text("clause", "条款")),
            Column("subject", Text("judged on", "判定对象")),
            Column("error", Text("error", "误差"), numeric=True),
            Column("interval", Text("95 % interval", "95% 区间"), numeric=True),
            Column("limit", Text("limit", "限值"), numeric=True),
            Column("outcome", Text("outcome", "结论")),
        ),
        rows=tuple(
            (
                formula_name(c.name),
                r.task if r.task is not None else c.subject,
                amount(c, c.error),
                f"{amount(c, c.low)} – {amount(c, c.high)}",
                amount(c, c.limit.value),
                outcome_name(c.outcome),
            )
            for r in judgement.results
            for c in (r.criterion,)
        ),
    )
