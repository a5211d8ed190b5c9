"""In MindSpeed-RL the number of iterations can change the row order.

Source: from 2025-05-16 on rows of step k are ``randperm(E·N, seed)[k·B:(k+1)·B] % N`` with
``E = ceil(train_iters·B / N)``; N, the number of rows, is not in the configuration. verl draws one
permutation of N rows an epoch, which is the same only where E = 1.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

FIELDS = ("trainer.total_steps",)


def rule(case: Case) -> Ruling | None:
    """Warn where a MindSpeed-RL run shuffles: the number of rows decides."""
    if case.both("data.shuffle", False) or "mindspeed_rl" not in case.frameworks:
        return None
    return Ruling(
        Text(
            "MindSpeed-RL's train_iters also sets the length of its permutation: where it needs "
            "another number of passes over the data than the other side, the row order differs "
            "from the first step on.",
            "MindSpeed-RL 的 train_iters 还决定排列的长度：若所需的数据遍历次数与另一侧不同，"
            "从第一步起数据顺序就不同。",
        ),
        Severity.WARNING,
        Strength.SEMANTIC,
        Rung.DATA,
        fix=Text(
            "Set train_iters to the steps that the other side's log shows: epochs × rows / batch "
            "size.",
            "将 train_iters 设为另一侧日志中的总步数：轮数 × 数据行数 / batch 大小。",
        ),
    )


_MINDSPEED = ("mindspeed_rl", "mindspeed_rl")
FIRES = (
    Example("trainer.total_steps", (500, 1000), frameworks=_MINDSPEED),
    Example("trainer.total_steps", (None, 1000), frameworks=("verl", "mindspeed_rl")),
)
SILENT = (
    Example("trainer.total_steps", (500, 1000)),
    Example(
        "trainer.total_steps", (500, 1000), both={"data.shuffle": False}, frameworks=_MINDSPEED
    ),
)
