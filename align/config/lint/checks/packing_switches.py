"""Removing padding in MindSpeed-RL needs further switches.

Source: its check of arguments (reset_attention_mask always, no_pad_to_seq_lengths with pipeline
parallelism), read in 2.3.0 and master.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report remove_padding without the switches it needs."""
    if run.framework != "mindspeed_rl" or not run.is_on("model.remove_padding"):
        return
    missing = []
    if run.is_off("actor.precision_options.reset_attention_mask"):
        missing.append("reset_attention_mask")
    pipelined = (run.number("actor.pipeline_parallel_size") or 1) > 1
    keys = [v for k, v in run.stated.items() if k.endswith("no_pad_to_seq_lengths")]
    if pipelined and not any(v.value is True for v in keys):
        missing.append("no_pad_to_seq_lengths")
    if not missing:
        return
    names = ", ".join(missing)
    yield problem(
        run,
        "packing_switches",
        Severity.ERROR,
        Effect(Rung.FORWARD),
        run.known("model.remove_padding", "actor.precision_options.reset_attention_mask"),
        Text(
            f"use_remove_padding is on, {names} not", f"开启了 use_remove_padding，但未开启 {names}"
        ),
        Text(
            "MindSpeed-RL stops at the start: packed sequences would see each other.",
            "MindSpeed-RL 会在启动时报错：否则打包在一起的序列会互相可见。",
        ),
        Text(f"Set {names}: true.", f"设置 {names}: true。"),
    )


_ON = {"model.remove_padding": True, "actor.precision_options.reset_attention_mask": True}
FIRES = (
    Example(
        _ON | {"actor.precision_options.reset_attention_mask": False},
        Severity.ERROR,
        "mindspeed_rl",
    ),
    Example(_ON | {"actor.pipeline_parallel_size": 2}, Severity.ERROR, "mindspeed_rl"),
)
SILENT = (
    Example(_ON, framework="mindspeed_rl"),
    Example(
        _ON | {"actor.pipeline_parallel_size": 2},
        framework="mindspeed_rl",
        stated={"megatron_training.no_pad_to_seq_lengths": True},
    ),
    Example({"model.remove_padding": False}, framework="mindspeed_rl"),
)
