"""A capture's outcome as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dumps.capture.launch import Outcome

_MOST_FAILURES = 5


def as_text(run: Path, outcome: Outcome) -> str:
    """Say what was recorded, what was not, and why."""
    lines = [
        f"align capture: {outcome.num_files} files in {run}, "
        f"whole steps: {steps_as_text(outcome.whole_steps)}"
    ]
    if outcome.tensor_bytes:
        lines.append(f"  tensors kept whole: {outcome.tensor_bytes / 1e6:.1f} MB")
    if outcome.broken_steps:
        lines.append(f"  recorded in part: {steps_as_text(outcome.broken_steps)}")
    if outcome.stopped is not None:
        lines.append(f"  stopped: {outcome.stopped}")
    if outcome.failures:
        lines.append(f"  {len(outcome.failures)} failures, in {run / 'capture.log'}:")
        lines += [f"    {line}" for line in outcome.failures[:_MOST_FAILURES]]
    if not outcome.num_files:
        lines.append(
            "  nothing was recorded: is npu-align installed in the command's environment, does a "
            "script set PYTHONPATH anew (keep :$PYTHONPATH), and does the command train with verl, "
            "TRL, MindSpeed-RL or align train?"
        )
    lines.append(f"  the command exited with {outcome.exit_code}")
    return "\n".join(lines)


def steps_as_text(steps: Sequence[int]) -> str:
    """Return "1-3, 7" for 1, 2, 3, 7; "none" for nothing."""
    ranges: list[list[int]] = []
    for step in sorted(steps):
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges) or "none"
