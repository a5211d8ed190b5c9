"""Without chunked prefill one engine step must hold the longest sequence.

Source: vLLM's scheduler configuration (max_num_batched_tokens must reach max_model_len without
chunked prefill); verl up to 0.6 refuses the opposite in its synchronous rollout.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the tokens of one engine step with the longest sequence."""
    budget = run.number("rollout.max_num_batched_tokens")
    limit = run.number("rollout.max_model_len") or run.longest_sequence
    seen = run.known("rollout.max_num_batched_tokens", "rollout.chunked_prefill")
    if budget is None or limit is None or len(seen) < 2 or budget >= limit:
        return
    chunked = run.is_on("rollout.chunked_prefill")
    if chunked and not (run.older_than("verl", 0, 7) and run.value("rollout.mode") == "sync"):
        return
    yield problem(
        run,
        "prefill_budget",
        Severity.WARNING,
        Effect(Rung.ROLLOUT),
        (*seen, *run.known("rollout.max_model_len")),
        Text(
            f"one engine step takes {shown(budget)} tokens, the longest sequence {shown(limit)}",
            f"引擎单步最多 {shown(budget)} 个 token，而最长序列为 {shown(limit)}",
        ),
        Text(
            "verl up to 0.6 stops at the start of its synchronous rollout.",
            "verl 0.6 及以前的同步 rollout 会在启动时报错。",
        )
        if chunked
        else Text(
            "Chunked prefill is off, so a longer prompt fits into no step: vLLM stops at the start "
            "or never schedules it.",
            "未开启分块预填充，过长的 prompt 无法放入任何一步：vLLM 会在启动时报错或永不调度。",
        ),
        Text(
            f"Raise max_num_batched_tokens to at least {shown(limit)}, or "
            + ("switch chunked prefill off." if chunked else "switch chunked prefill on."),
            f"将 max_num_batched_tokens 提高到至少 {shown(limit)}，或"
            + ("关闭分块预填充。" if chunked else "开启分块预填充。"),
        ),
    )


_SHORT = {"rollout.max_num_batched_tokens": 2048, "rollout.max_model_len": 4096}
FIRES = (
    Example(_SHORT | {"rollout.chunked_prefill": False}),
    Example(_SHORT | {"rollout.chunked_prefill": True, "rollout.mode": "sync"}, version="0.5.0"),
)
SILENT = (
    Example(_SHORT | {"rollout.chunked_prefill": True}),
    Example(
        {
            "rollout.max_num_batched_tokens": 8192,
            "rollout.max_model_len": 4096,
            "rollout.chunked_prefill": False,
        }
    ),
)
