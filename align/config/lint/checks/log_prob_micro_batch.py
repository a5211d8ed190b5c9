"""On-policy ratios are 1 only if old and new log_probs are computed in equal batches.

Source: verl issue 6280: pg_clipfrac above 0 on-policy where log_prob_micro_batch_size_per_gpu is
twice ppo_micro_batch_size_per_gpu; kernels are not batch-invariant. MindSpeed-RL and the FSDP
workers of verl 0.6 and 0.7 take the new log_probs for the old ones on-policy (read in the tags).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the two micro-batch sizes of an on-policy run."""
    sizes = run.numbers("old_log_prob.micro_batch_size", "actor.micro_batch_size")
    dynamic = run.is_on("actor.dynamic_batch") or run.is_on("old_log_prob.dynamic_batch")
    if sizes is None or sizes[0] == sizes[1] or dynamic or not run.is_on("derived.on_policy"):
        return
    if _reuses_log_probs(run):
        return
    yield problem(
        run,
        "log_prob_micro_batch",
        Severity.WARNING,
        Effect(Rung.LOSS, Strength.NUMERIC, ("actor/pg_clipfrac*", "actor/ppo_kl")),
        run.known("old_log_prob.micro_batch_size", "actor.micro_batch_size"),
        Text(
            f"on-policy, but old log_probs are computed {shown(sizes[0])} sequences at a time and "
            f"the update's {shown(sizes[1])}",
            f"on-policy，但 old_log_prob 每次计算 {shown(sizes[0])} 条序列，更新时每次 "
            f"{shown(sizes[1])} 条",
        ),
        Text(
            "Kernels round differently in other batch shapes, so the ratio is not exactly 1: "
            "pg_clipfrac and ppo_kl are above 0 on every device, and their size is no evidence "
            "against the NPU.",
            "batch 形状不同则舍入不同，ratio 不再恰为 1：任何设备上 pg_clipfrac 与 ppo_kl "
            "都会大于 0，不能据此判断 NPU 有问题。",
        ),
        Text(
            "Set both micro-batch sizes to one value before comparing devices.",
            "对比设备之前，将两个 micro-batch 大小设为相同。",
        ),
    )


def _reuses_log_probs(run: OneRun) -> bool:
    """Tell whether this framework uses no separate old log_probs on-policy."""
    fsdp = run.value("actor.strategy") in ("fsdp", "fsdp2")
    in_actor = run.framework == "verl" and fsdp and run.version in ((0, 6), (0, 7))
    return run.framework == "mindspeed_rl" or in_actor


_ON_POLICY = {
    "data.train_batch_size": 64,
    "actor.mini_batch_size": 64,
    "actor.ppo_epochs": 1,
    "actor.micro_batch_size": 2,
    "old_log_prob.micro_batch_size": 4,
}
FIRES = (Example(_ON_POLICY),)
SILENT = (
    Example(_ON_POLICY | {"old_log_prob.micro_batch_size": 2}),
    Example(_ON_POLICY | {"actor.mini_batch_size": 16}),
    Example(_ON_POLICY, framework="mindspeed_rl"),
    Example(_ON_POLICY | {"actor.strategy": "fsdp"}, version="0.7.1"),
    Example(_ON_POLICY | {"actor.dynamic_batch": True}),
)
