"""full_shuffle_instruction_dataset does nothing in MindSpeed-RL's GRPO.

Source: train_grpo never passes it on (mapping of the two frameworks' keys).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report the dead key where it is on."""
    keys = [v for k, v in sorted(run.stated.items()) if k.endswith(_NAME) and v.value is True]
    if run.framework != "mindspeed_rl" or not keys:
        return
    yield problem(
        run,
        "full_shuffle_unused",
        Severity.INFO,
        Effect(Rung.DATA, Strength.NONE),
        keys,
        Text(f"{_NAME} is on, but nothing reads it", f"开启了 {_NAME}，但不会被读取"),
        Text(
            "The row order of GRPO follows seed, no_shuffle and train_iters alone.",
            "GRPO 的数据顺序只取决于 seed、no_shuffle 与 train_iters。",
        ),
        Text("Remove it; set seed and no_shuffle.", "删除该项；设置 seed 与 no_shuffle。"),
    )


_NAME = "full_shuffle_instruction_dataset"
FIRES = (
    Example(
        framework="mindspeed_rl",
        severity=Severity.INFO,
        stated={f"megatron_training.{_NAME}": True},
    ),
)
SILENT = (Example(framework="mindspeed_rl", stated={f"megatron_training.{_NAME}": False}),)
