"""Responses must be laid out as their prompts are.

Source: Qwen3-235B report: the reward fell to 0 where the interleave of the input batch was changed
and that of the output batch was not. verl's own code has interleave=True in both places; patched
versions make it a setting.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.config_value import ConfigValue
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report two interleave settings that differ."""
    keys = {v.key: v for v in (*run.stated.values(), *run.config.unmatched) if _is_one(v)}
    settings = [keys[key] for key in sorted(keys)]
    if len({bool(v.value) for v in settings}) < 2:
        return
    listed = ", ".join(f"{v.key}={shown(v.value)}" for v in settings)
    yield problem(
        run,
        "interleave",
        Severity.ERROR,
        Effect(Rung.REWARD),
        settings,
        Text(f"interleave is set differently: {listed}", f"interleave 设置不一致：{listed}"),
        Text(
            "Responses are matched with the prompts and answers of other rows: in the field the "
            "reward fell to 0.",
            "回复会与其他行的 prompt 和答案配对：实践中 reward 直接跌为 0。",
        ),
        Text(
            "Set interleave to one value for the input and the output batch.",
            "将输入与输出 batch 的 interleave 设为同一取值。",
        ),
    )


def _is_one(value: ConfigValue) -> bool:
    name = value.key.rpartition(".")[2]
    return "interleave" in name and isinstance(value.value, bool)


FIRES = (
    Example(
        stated={"trainer.input_interleave": False, "trainer.output_interleave": True},
        severity=Severity.ERROR,
    ),
)
SILENT = (
    Example(stated={"trainer.input_interleave": False, "trainer.output_interleave": False}),
    Example(stated={"trainer.input_interleave": False}),
)
