"""With several updates per batch the optimizer acts within the step, on the later losses."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import number

FIELDS = (
    "actor.lr",
    "actor.lr_*",
    "actor.min_lr",
    "actor.optimizer*",
    "actor.weight_decay",
    "actor.adam_*",
    "actor.clip_grad",
    "actor.master_dtype",
    "actor.reduce_dtype",
)


def rule(case: Case) -> Ruling | None:
    """Let it act from the loss on where a batch is used for more than one update."""
    steps = [number(value) for value in case.values("derived.optimizer_steps_per_iteration")]
    if not any(count is not None and count > 1 for count in steps):
        return None
    return Ruling(
        Text(
            "Several updates are made from one batch, so the loss of the later ones changes within "
            "the first training step.",
            "同一批数据更新多次，因此在第一个训练步内后几次更新的损失就会不同。",
        ),
        acts_on=Rung.LOSS,
    )


_BATCH = {"data.train_batch_size": 256, "actor.ppo_epochs": 1}
FIRES = (Example("actor.lr", (1e-6, 1e-5), both={**_BATCH, "actor.mini_batch_size": 64}),)
SILENT = (
    Example("actor.lr", (1e-6, 1e-5), both={**_BATCH, "actor.mini_batch_size": 256}),
    Example("actor.lr", (1e-6, 1e-5)),
)
