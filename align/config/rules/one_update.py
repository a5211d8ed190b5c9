"""With one update per batch the grouping of rows and the clip of the ratio do not act."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text

_GROUPING = ("actor.shuffle_mini_batches", "trainer.balance_batch", "data.guarantee_order")
FIELDS = (*_GROUPING, "loss.clip_ratio*")


def rule(case: Case) -> Ruling | None:
    """Grade it down where every row of a step is in the one update."""
    if not case.both("derived.on_policy", True):
        return None
    if case.name in _GROUPING:
        return Ruling(
            Text(
                "All rows of a step are in one update on both sides: only rounding differs.",
                "两侧每步的所有数据都在同一次更新中：只有舍入不同。",
            ),
            Severity.INFO,
            Strength.NUMERIC,
        )
    return Ruling(
        Text(
            "There is one update per batch, so the ratio stays 1 and the clip does not act; it "
            "will as soon as mini-batches are smaller.",
            "每批数据只更新一次，ratio 始终为 1，裁剪不起作用；一旦 mini-batch 变小就会起作用。",
        ),
        Severity.WARNING,
        Strength.NONE,
    )


_ONE = {"data.train_batch_size": 32, "actor.mini_batch_size": 32, "actor.ppo_epochs": 1}
FIRES = (
    Example("trainer.balance_batch", (True, False), both=_ONE),
    Example("loss.clip_ratio_high", (0.2, 0.28), both=_ONE),
)
SILENT = (
    Example("trainer.balance_batch", (True, False), both={**_ONE, "actor.mini_batch_size": 8}),
    Example("loss.clip_ratio_high", (0.2, 0.28)),
)
