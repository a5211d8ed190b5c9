"""Dropout makes training random where the rollout is not.

Source: defaults of MindSpeed-RL's configuration (attention_dropout and hidden_dropout 0.1).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_FIELDS = ("model.attention_dropout", "model.hidden_dropout")


def check(run: OneRun) -> Iterator[Finding]:
    """Report dropout that is on, written or by default."""
    on = [value for value in run.known(*_FIELDS) if run.number(value.field)]
    for value in on:
        default = run.by_default(value.field)
        rate = shown(value.value)
        yield problem(
            run,
            f"dropout.{value.field.partition('.')[2]}",
            Severity.ERROR,
            Effect(Rung.FORWARD),
            (value,),
            Text(
                f"{value.raw.key} is not written and defaults to {rate}",
                f"未写明 {value.raw.key}，默认为 {rate}",
            )
            if default
            else Text(f"{value.raw.key} is {rate}", f"{value.raw.key} 为 {rate}"),
            Text(
                "The update drops activations at random while the rollout and the reference model "
                "do not: log_probs of one token never agree, and no two runs do.",
                "更新时随机丢弃激活，而 rollout 与参考模型不会：同一 token 的 log_probs 不会一致，"
                "任何两次运行也不会一致。",
            ),
            Text(f"Write {value.raw.key}: 0.0.", f"写明 {value.raw.key}: 0.0。"),
        )


FIRES = (
    Example(
        framework="mindspeed_rl",
        severity=Severity.ERROR,
        defaults={"model.attention_dropout": 0.1, "model.hidden_dropout": 0.1},
    ),
    Example({"model.attention_dropout": 0.1}, Severity.ERROR),
)
SILENT = (Example({"model.attention_dropout": 0.0, "model.hidden_dropout": 0.0}), Example())
