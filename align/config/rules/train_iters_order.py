"""In MindSpeed-RL the number of iterations can change the row order.

Source: rows of step k are ``randperm(E·N, seed)[k·B:(k+1)·B] % N`` with
``E = ceil(train_iters·B / N)``; N, the number of rows, is not in the configuration.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

FIELDS = ("trainer.total_steps",)


def rule(case: Case) -> Ruling | None:
    """Warn where both runs are MindSpeed-RL's and shuffle: the number of rows decides."""
    if case.both("data.shuffle", False) or case.frameworks != ("mindspeed_rl", "mindspeed_rl"):
        return None
    return Ruling(
        Text(
            "train_iters also sets the length of the permutation: if the two values need another "
            "number of passes over the data, the row order differs from the first step on.",
            "train_iters 还决定排列的长度：若两个值对应的数据遍历次数不同，"
            "从第一步起数据顺序就不同。",
        ),
        Severity.WARNING,
        Strength.SEMANTIC,
        Rung.DATA,
    )


FIRES = (Example("trainer.total_steps", (500, 1000), frameworks=("mindspeed_rl", "mindspeed_rl")),)
SILENT = (Example("trainer.total_steps", (500, 1000)),)
