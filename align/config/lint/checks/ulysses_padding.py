"""Ulysses sequence parallelism needs packed sequences.

Source: verl refuses it without use_remove_padding (tags v0.6.1 to v0.9.0).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report sequence parallelism without remove_padding."""
    size = run.number("actor.context_parallel_size") or 1
    fsdp = run.framework == "verl" and run.value("actor.strategy") in ("fsdp", "fsdp2")
    if not fsdp or size <= 1 or not run.is_off("model.remove_padding"):
        return
    yield problem(
        run,
        "ulysses_padding",
        Severity.ERROR,
        Effect(Rung.FORWARD),
        run.known("model.remove_padding", "actor.context_parallel_size"),
        Text(
            f"Ulysses sequence parallel size {shown(size)} without use_remove_padding",
            f"Ulysses 序列并行度为 {shown(size)}，但未开启 use_remove_padding",
        ),
        Text("verl stops at the start.", "verl 会在启动时报错。"),
        Text(
            "Set actor_rollout_ref.model.use_remove_padding=True.",
            "设置 actor_rollout_ref.model.use_remove_padding=True。",
        ),
    )


_PACKED: Settings = {
    "actor.strategy": "fsdp",
    "actor.context_parallel_size": 2,
    "model.remove_padding": True,
}
FIRES = (Example(_PACKED | {"model.remove_padding": False}, Severity.ERROR),)
SILENT = (
    Example(_PACKED),
    Example(_PACKED | {"model.remove_padding": False, "actor.context_parallel_size": 1}),
    Example(_PACKED | {"model.remove_padding": False, "actor.strategy": "megatron"}),
)
