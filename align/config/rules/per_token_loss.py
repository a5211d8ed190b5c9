"""Megatron averages over the tokens of the whole batch, or of each micro-batch first.

Source: Megatron's ``calculate_per_token_loss``; verl#906, verl#5625 and others: the sum of
micro-batch means is not the mean over all tokens where responses differ in length.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity
from align.core.text import Text

FIELDS = ("loss.options.calculate_per_token_loss",)


def rule(case: Case) -> Ruling | None:
    """Call it an error: another mean is taken."""
    return Ruling(
        Text(
            "One side divides the loss by the tokens of the whole batch, the other by those of "
            "each micro-batch, so short responses weigh more.",
            "一侧用整个 batch 的 token 数归一化损失，另一侧用每个 micro-batch 的 token 数，"
            "因此短回复的权重更大。",
        ),
        Severity.ERROR,
        instead=True,
    )


FIRES = (Example("loss.options.calculate_per_token_loss", (True, False)),)
SILENT: tuple[Example, ...] = ()  # it has something to say about every difference
