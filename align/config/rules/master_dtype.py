"""Weights kept in bfloat16 do not move by less than half a unit in their last place.

Source: bfloat16 has 8 significant bits, so half a unit is at least 2**-9 of the weight, and Adam
moves a weight by about the learning rate. AReaL#1369: the loss plateaued about 3 times as high;
with float32 weights restored a learning rate tuned to bfloat16 was too high (#1634).
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.text import Text

FIELDS = ("actor.master_dtype",)

_WEIGHT_PER_UPDATE = 2**9


def rule(case: Case) -> Ruling | None:
    """Say which weights stand still where one side keeps bfloat16."""
    rates = case.numbers("actor.lr")
    dtypes = (case.reference.value, case.candidate.value)
    rate = next((lr for lr, kind in zip(rates, dtypes, strict=True) if kind == "bfloat16"), None)
    if rate is None or rate <= 0:
        return None
    size = f"{rate * _WEIGHT_PER_UPDATE:.1g}"
    return Ruling(
        Text(
            f"At learning rate {rate:g} weights above about {size} then stand still. A learning "
            "rate tuned in bfloat16 can be too high with float32 weights (AReaL#1369, #1634).",
            f"学习率为 {rate:g} 时，绝对值大于约 {size} 的权重将不再变化。在 bfloat16 下调好的"
            "学习率对 float32 权重可能过大（AReaL#1369、#1634）。",
        ),
        fix=Text(
            "Let the optimizer keep float32 weights on both sides.",
            "两侧的优化器都保留 float32 权重。",
        ),
    )


FIRES = (Example("actor.master_dtype", ("float32", "bfloat16"), both={"actor.lr": 1e-6}),)
SILENT = (
    Example("actor.master_dtype", ("float32", "float16"), both={"actor.lr": 1e-6}),
    Example("actor.master_dtype", ("float32", "bfloat16")),
)
