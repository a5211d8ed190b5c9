"""How many updates are made from one batch of responses decides whether training is on-policy.

Source: verl#399, verl#2793: the optimizer steps several times for one rollout, verl's schedule
once; MindSpeed-RL advances its schedule with every optimizer step.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.text import Text

FIELDS = ("actor.mini_batch_size", "actor.ppo_epochs", "data.train_batch_size")


def rule(case: Case) -> Ruling | None:
    """Say how many updates each side makes where the numbers differ."""
    first, second = case.numbers("derived.optimizer_steps_per_iteration")
    if first is None or second is None or first == second:
        return None
    on_policy = case.values("derived.on_policy")
    policies = ["on-policy" if value else "off-policy" for value in on_policy]
    return Ruling(
        Text(
            f"Optimizer steps per training step: {first:g} in the reference ({policies[0]}), "
            f"{second:g} in the candidate ({policies[1]}).",
            f"每个训练步的优化器更新次数：参考为 {first:g}（{policies[0]}），"
            f"被测为 {second:g}（{policies[1]}）。",
        )
    )


_BATCH = {"data.train_batch_size": 1024, "actor.ppo_epochs": 1, "actor.mini_batch_size": 256}
FIRES = (
    Example("actor.mini_batch_size", (256, 1024), both=_BATCH),
    Example("actor.ppo_epochs", (1, 2), both=_BATCH),
)
SILENT = (
    Example("actor.mini_batch_size", (256, 1024)),
    Example(
        "data.train_batch_size",
        (512, 1024),
        both={"actor.ppo_epochs": 1},
        reference={"actor.mini_batch_size": 128},
        candidate={"actor.mini_batch_size": 256},
    ),
)
