"""A KL term with coefficient zero is no KL term."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text

FIELDS = ("loss.use_kl", "loss.kl_coef", "loss.kl_type")


def rule(case: Case) -> Ruling | None:
    """Call it harmless where neither side adds anything to its loss."""
    uses, coefficients = case.values("loss.use_kl"), case.values("loss.kl_coef")
    silent = [
        use is False or (use is True and c == 0) for use, c in zip(uses, coefficients, strict=True)
    ]
    if not all(silent):
        return None
    return Ruling(
        Text("Neither side adds a KL term to its loss.", "两侧的损失都没有加入 KL 项。"),
        Severity.INFO,
        Strength.NONE,
    )


FIRES = (
    Example("loss.use_kl", (True, False), both={"loss.kl_coef": 0.0}),
    Example("loss.kl_coef", (0.001, 0.01), both={"loss.use_kl": False}),
)
SILENT = (
    Example("loss.use_kl", (True, False), both={"loss.kl_coef": 0.001}),
    Example("loss.kl_coef", (0.001, 0.01)),
)
