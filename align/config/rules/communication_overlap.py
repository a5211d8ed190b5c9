"""Overlapping communication with computation has made gradients NaN.

Source: Megatron-Bridge#1255, #2096 and #4168: the gradient norm was NaN or not by one switch,
``overlap_param_gather`` among them.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity
from align.core.text import Text

FIELDS = ("actor.parallel_options.*overlap_*",)


def rule(case: Case) -> Ruling | None:
    """Warn: it should change nothing, and is a known risk."""
    return Ruling(
        Text(
            "Overlap should change no number, yet with overlap_param_gather gradient norms have "
            "been NaN (Megatron-Bridge#1255): a missing wait uses weights that are not there yet.",
            "通信重叠本不应改变数值，但 overlap_param_gather 曾使梯度范数为 NaN"
            "（Megatron-Bridge#1255）：缺少等待时会用到尚未就绪的权重。",
        ),
        Severity.WARNING,
        instead=True,
        signature=("actor/grad_norm",),
        fix=Text(
            "Switch all overlap_* off on both sides until the runs agree.",
            "在两侧一致之前，关闭所有 overlap_* 开关。",
        ),
    )


FIRES = (Example("actor.parallel_options.overlap_param_gather", (False, True)),)
SILENT: tuple[Example, ...] = ()  # it has something to say about every difference
