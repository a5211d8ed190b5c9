"""verl has two keys for the gradient norm, and each version reads one of them.

Source: read in the tags: actor.grad_clip up to v0.7.1, optim.clip_grad from v0.8.0 on.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import number

_KEYS = (
    "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.actor.optim.clip_grad",
)


def check(run: OneRun) -> Iterator[Finding]:
    """Report the key that is not read where it has another value."""
    dead = [key for key in _KEYS if key in run.config.ignored and key in run.stated]
    counts = run.known("actor.clip_grad")
    if len(dead) != 1 or not counts:
        return
    written = run.stated[dead[0]]
    if number(written.value) == number(counts[0].value):
        return
    yield problem(
        run,
        "clip_grad_unused",
        Severity.WARNING,
        Effect(Rung.OPTIMIZER, signature=("actor/grad_norm",)),
        (written, *counts),
        Text(
            f"{dead[0]} is {shown(written.value)}, but nothing reads it",
            f"{dead[0]} 为 {shown(written.value)}，但不会被读取",
        ),
        Text(
            f"Gradients are clipped at {shown(counts[0].value)} ({counts[0].raw.key}): verl up to "
            "0.7 reads actor.grad_clip, from 0.8 on optim.clip_grad.",
            f"梯度按 {shown(counts[0].value)} 裁剪（{counts[0].raw.key}）：verl 0.7 及以前读取 "
            "actor.grad_clip，0.8 起读取 optim.clip_grad。",
        ),
        Text("Set both keys to one value.", "将两个键设为同一取值。"),
    )


FIRES = (
    Example({"actor.clip_grad": 1.0}, stated={_KEYS[0]: 0.3}, dead=(_KEYS[0],)),
    Example({"actor.clip_grad": 0.3}, stated={_KEYS[1]: 1.0}, dead=(_KEYS[1],), version="0.6.1"),
)
SILENT = (
    Example({"actor.clip_grad": 1.0}, stated={_KEYS[0]: 1.0}, dead=(_KEYS[0],)),
    Example({"actor.clip_grad": 1.0}, stated={_KEYS[1]: 1.0}),
)
