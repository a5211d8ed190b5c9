"""MindSpeed-RL's max_packing_token_size has no effect alone.

Source: its three derivatives are copied from it before the YAML is applied (facts read from the
source of the configuration class).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_KEY = "rl_config.max_packing_token_size"
_REAL = ("actor.max_tokens_per_micro_batch", "old_log_prob.max_tokens", "ref.max_tokens")


def check(run: OneRun) -> Iterator[Finding]:
    """Report the key where one of the three that count is left at its default."""
    written = run.stated.get(_KEY)
    unset = [v for v in run.known(*_REAL) if run.by_default(v.field)]
    if run.framework != "mindspeed_rl" or written is None or not unset:
        return
    if all(v.value == written.value for v in unset):
        return
    names = ", ".join(v.raw.key for v in unset)
    yield problem(
        run,
        "packing_tokens",
        Severity.WARNING,
        Effect(Rung.LOSS, Strength.NUMERIC),
        (written, *unset),
        Text(
            f"max_packing_token_size is {shown(written.value)}, but {names} stay at "
            f"{shown(unset[0].value)}",
            f"max_packing_token_size 为 {shown(written.value)}，但 {names} 仍为 "
            f"{shown(unset[0].value)}",
        ),
        Text(
            "The three sizes in use are copied from it before the YAML is read: micro-batches are "
            "packed otherwise than it says, which also weights the tokens of the loss.",
            "实际使用的三个值在读取 YAML 之前就已从默认值复制：micro-batch 的打包与所写不同，"
            "也会改变损失中 token 的权重。",
        ),
        Text(
            "Write update_max_packing_token_size, actor_max_packing_token_size and "
            "ref_max_packing_token_size themselves.",
            "分别写明 update_max_packing_token_size、actor_max_packing_token_size 与 "
            "ref_max_packing_token_size。",
        ),
    )


_DEFAULTS = {"actor.max_tokens_per_micro_batch": 4096, "old_log_prob.max_tokens": 4096}
FIRES = (Example(framework="mindspeed_rl", defaults=_DEFAULTS, stated={_KEY: 8192}),)
SILENT = (
    Example(dict.fromkeys(_REAL, 8192), framework="mindspeed_rl", stated={_KEY: 8192}),
    Example(framework="mindspeed_rl", defaults=_DEFAULTS),
)
