"""The trainer's output layer needs a row for every id, and padding rows must be known.

Source: padded_vocab_size of MindSpeed-RL against vocab_size of config.json; transformers issues
26714 and 24899 (32001 ids for 32000 rows).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import number


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the rows of the trainer with those of config.json."""
    trainer, engine = run.config.values.get("model.vocab_size"), run.model.get("model.vocab_size")
    if trainer is None or engine is None:
        return
    rows, ids = number(trainer.value), number(engine.value)
    if rows is None or ids is None or rows == ids:
        return
    fewer = rows < ids
    yield problem(
        run,
        "vocabulary",
        Severity.ERROR if fewer else Severity.INFO,
        Effect(Rung.FORWARD, Strength.SEMANTIC if fewer else Strength.NUMERIC),
        (trainer, engine),
        Text(
            f"the output layer has {shown(rows)} rows in training and {shown(ids)} in config.json",
            f"输出层在训练中为 {shown(rows)} 行，在 config.json 中为 {shown(ids)} 行",
        ),
        Text(
            "Ids above the last row have no weight: the checkpoint does not fit, or the rollout "
            "can draw ids that training cannot score.",
            "超出行数的 id 没有对应权重：权重无法载入，或 rollout 会采样到训练无法计算的 id。",
        )
        if fewer
        else Text(
            "The further rows are padding. They add to the softmax denominator of training unless "
            "they are masked.",
            "多出的行为补齐；若未屏蔽，会进入训练 softmax 的分母。",
        ),
        Text(
            f"Set {trainer.raw.key} to {shown(ids)}, or to the next multiple that tensor "
            "parallelism needs.",
            f"将 {trainer.raw.key} 设为 {shown(ids)}，或张量并行所需的下一个倍数。",
        ),
    )


_ROWS = {"model.vocab_size": 152064}
FIRES = (
    Example({"model.vocab_size": 151936}, Severity.ERROR, "mindspeed_rl", model=_ROWS),
    Example({"model.vocab_size": 153600}, Severity.INFO, "mindspeed_rl", model=_ROWS),
)
SILENT = (
    Example(_ROWS, framework="mindspeed_rl", model=_ROWS),
    Example(_ROWS, framework="mindspeed_rl"),
)
