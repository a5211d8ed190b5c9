"""Two passes over the same tokens agree bit by bit only with the same micro-batch.

Source: verl#6280: on-policy, with log_prob_micro_batch_size_per_gpu twice
ppo_micro_batch_size_per_gpu, pg_clipfrac was above 0; with equal values it was 0.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity
from align.core.text import Text

FIELDS = ("old_log_prob.micro_batch_size",)


def rule(case: Case) -> Ruling | None:
    """Warn where it equals the update's micro-batch on one side only, and training is on-policy."""
    if not case.both("derived.on_policy", True) or case.both("actor.dynamic_batch", True):
        return None
    updates = case.values("actor.micro_batch_size")
    own = (case.reference.value, case.candidate.value)
    apart = [None not in pair and pair[0] != pair[1] for pair in zip(own, updates, strict=True)]
    if apart[0] == apart[1]:
        return None
    side = Text("reference", "参考") if apart[0] else Text("candidate", "被测")
    return Ruling(
        Text(
            f"In the {side.en} it is not the micro-batch of the update, and kernels depend on the "
            "batch: ratio and pg_clipfrac leave their on-policy values 1 and 0 (verl#6280).",
            f"{side.zh}中它与更新的 micro-batch 不同，而算子结果依赖于 batch："
            "ratio 与 pg_clipfrac 会偏离 on-policy 应有的 1 与 0（verl#6280）。",
        ),
        Severity.WARNING,
        signature=("actor/pg_clipfrac*", "actor/ppo_kl"),
        fix=Text(
            "Use the same micro-batch for log_probs and update.",
            "log_prob 与更新使用相同的 micro-batch。",
        ),
    )


_ON_POLICY = {
    "data.train_batch_size": 32,
    "actor.mini_batch_size": 32,
    "actor.ppo_epochs": 1,
    "actor.micro_batch_size": 2,
}
FIRES = (Example("old_log_prob.micro_batch_size", (2, 4), both=_ON_POLICY),)
SILENT = (
    Example("old_log_prob.micro_batch_size", (4, 8), both=_ON_POLICY),
    Example(
        "old_log_prob.micro_batch_size", (2, 4), both={**_ON_POLICY, "actor.mini_batch_size": 8}
    ),
)
