"""A micro-batch by tokens must hold the longest sequence, and long ones must fit into memory.

Source: verl asserts max_token_len >= the longest sequence (padded up to 0.5, real from 0.7 on);
Qwen3-235B report: log_prob out of memory at 30k responses until the budget was lowered to 16k, and
a warning against too small ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.config_value import EffectiveValue
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_LONG, _LARGE = 30_000, 16 * 1024
_BUDGETS = (
    ("actor.max_tokens_per_micro_batch", "actor.dynamic_batch", Rung.LOSS),
    ("old_log_prob.max_tokens", "old_log_prob.dynamic_batch", Rung.FORWARD),
)


def check(run: OneRun) -> Iterator[Finding]:
    """Compare every token budget in use with the longest sequence."""
    longest = run.longest_sequence
    if longest is None:
        return
    parallel = run.number("actor.context_parallel_size") or 1
    for name, flag, rung in _BUDGETS:
        tokens = run.number(name)
        if tokens is None or not run.is_on(flag):
            continue
        (budget,) = run.known(name)
        if tokens * parallel < longest:
            yield _too_small(run, budget, rung, tokens * parallel, longest)
        elif longest >= _LONG and tokens > _LARGE and name == "old_log_prob.max_tokens":
            yield _too_large(run, budget, rung, longest)


def _too_small(
    run: OneRun, budget: EffectiveValue, rung: Rung, tokens: float, longest: float
) -> Finding:
    return problem(
        run,
        f"token_budget.{budget.field}",
        Severity.WARNING,
        Effect(rung),
        (budget, *run.known("data.max_prompt_length", "data.max_response_length")),
        Text(
            f"{budget.raw.key}: a micro-batch holds {shown(tokens)} tokens, the longest sequence "
            f"has {shown(longest)}",
            f"{budget.raw.key}：一个 micro-batch 容纳 {shown(tokens)} 个 token，"
            f"最长序列为 {shown(longest)}",
        ),
        Text(
            "verl stops as soon as a sequence is longer than the budget (up to 0.5 at once, as the "
            "padded length counts). Small budgets are also slow.",
            "一旦序列长于该上限 verl 就会报错（0.5 及以前按补齐后的长度计算，会立即报错）。"
            "过小的上限也会降低效率。",
        ),
        Text(
            f"Raise it so that it times the sequence parallel size reaches {shown(longest)}.",
            f"提高该值，使其乘以序列并行度后不小于 {shown(longest)}。",
        ),
    )


def _too_large(run: OneRun, budget: EffectiveValue, rung: Rung, longest: float) -> Finding:
    return problem(
        run,
        f"token_budget.{budget.field}",
        Severity.INFO,
        Effect(rung, Strength.NONE),
        (budget, *run.known("data.max_response_length")),
        Text(
            f"{shown(budget.value)} tokens a log_prob micro-batch for sequences of "
            f"{shown(longest)} tokens",
            f"log_prob 每个 micro-batch 为 {shown(budget.value)} 个 token，"
            f"而序列长达 {shown(longest)}",
        ),
        Text(
            "With 30k responses of Qwen3-235B on Ascend A2 the log_prob phase ran out of memory "
            "above 16k tokens.",
            "在 Ascend A2 上 Qwen3-235B 的 30k 回复中，超过 16k token 时 log_prob 阶段显存不足。",
        ),
        Text(
            "If it runs out of memory, lower log_prob_max_token_len_per_gpu to 16384, not much "
            "lower.",
            "若显存不足，将 log_prob_max_token_len_per_gpu 降到 16384，不宜更小。",
        ),
    )


_LENGTHS = {"data.max_prompt_length": 2048, "data.max_response_length": 30720}
_ACTOR = {"actor.dynamic_batch": True, "actor.max_tokens_per_micro_batch": 16384}
_OLD = {"old_log_prob.dynamic_batch": True, "old_log_prob.max_tokens": 40960}
FIRES = (
    Example(_LENGTHS | _ACTOR),
    Example(_LENGTHS | _OLD | {"old_log_prob.max_tokens": 8192}),
    Example(_LENGTHS | _OLD, Severity.INFO),
)
SILENT = (
    Example(_LENGTHS | _ACTOR | {"actor.context_parallel_size": 4}),
    Example(_LENGTHS | _ACTOR | {"actor.dynamic_batch": False}),
    Example(_LENGTHS | _OLD | {"data.max_response_length": 8192}),
)
