"""A replay's result as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dumps.inject.launch import Replayed

_MOST = 12


def as_text(run: Path, marks: Mapping[str, int], replayed: Replayed) -> str:
    """Say what was used, what was not, and why a run was refused."""
    proof = replayed.proof
    given = ", ".join(f"{count} {mark}" for mark, count in marks.items() if count)
    lines = [f"align replay: recorded rows: {given}"]
    if replayed.refused:
        lines.append("  refused:")
        lines += [f"    {text}" for text in replayed.refused[:_MOST]]
    lines.append(
        f"  consumed: {proof.rows} rows in {proof.steps} steps, {proof.identical} identical to "
        f"recorded ones, {proof.mismatches} not, {proof.generated} generated, "
        f"{proof.left_over} recorded rows left over"
    )
    lines += [f"    {text}" for text in proof.first]
    if proof.out_of_order:
        lines.append(f"  rows in another order than recorded in {proof.out_of_order} steps")
    if proof.scores_differ:
        lines.append(f"  {proof.scores_differ} rows got another score than recorded")
    lines += [f"  allowed: {text}" for text in replayed.allowed[:_MOST]]
    if not (proof.rows or replayed.refused or replayed.outcome.exit_code):
        lines.append(
            "  nothing was consumed: is npu-align installed in the command's environment, and "
            "does it train with verl, TRL, MindSpeed-RL or align train?"
        )
    if proof.rows:
        verdict = "holds" if proof.holds else "FAILS"
        lines.append(f"  proof {verdict}: {run / 'align-run.json'}")
    lines.append(f"  the command exited with {replayed.outcome.exit_code}")
    return "\n".join(lines)
