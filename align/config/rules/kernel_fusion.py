"""Megatron's fusions keep intermediates in bfloat16 where the rollout engine has float32.

Source: NeMo-RL#1801, 109 steps: steps on which training and rollout drifted apart were 100 % with
the default fusions, 24.6 % without ``apply_rope_fusion``, 6.4 % without ``bias_activation_fusion``
as well; the reward was 0.5 in every arm.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.config.schema.rollout import MISMATCH_METRICS
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

FIELDS = (
    "model.fused_rope",
    "model.fused_swiglu",
    "actor.precision_options.*fusion",
)


def rule(case: Case) -> Ruling | None:
    """Grade it as other rounding that the gap to the rollout engine shows."""
    return Ruling(
        Text(
            "Fused rotary embedding and SwiGLU keep bfloat16 intermediates: in one report they "
            "alone drove training and rollout probabilities apart until the run crashed, while "
            "the reward stayed equal (NeMo-RL#1801).",
            "融合的旋转位置编码与 SwiGLU 保留 bfloat16 中间结果：有报告称仅此就使训练与 rollout "
            "的概率逐渐偏离直至崩溃，而 reward 始终相同（NeMo-RL#1801）。",
        ),
        Severity.WARNING,
        Strength.NUMERIC,
        Rung.FORWARD,
        instead=True,
        signature=MISMATCH_METRICS,
        fix=Text(
            "Switch fusions off one at a time and watch the gap between training and rollout "
            "log_probs, not the reward.",
            "逐个关闭融合，并观察训练与 rollout log_probs 的差距，而不是 reward。",
        ),
    )


FIRES = (
    Example("actor.precision_options.apply_rope_fusion", (False, True)),
    Example("model.fused_swiglu", (False, True)),
)
SILENT: tuple[Example, ...] = ()  # it has something to say about every difference
