"""How Megatron's weights become those of the rollout engine.

Source: vime#274, Ascend 910B with Qwen3-4B: with the hand-written conversion (``raw``) the gap
between training and rollout log_probs was far above a GPU's from step 0 on and training did not
converge; ``bridge`` cured it. verl's switches are ``use_mbridge`` and ``vanilla_mbridge``.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

FIELDS = ("actor.parallel_options.*mbridge", "actor.parallel_options.megatron_to_hf_mode")


def rule(case: Case) -> Ruling | None:
    """Warn: a wrong conversion shows in the first step."""
    return Ruling(
        Text(
            "Another code converts the weights for the rollout engine. A wrong conversion shows as "
            "a gap between training and rollout log_probs from step 0 on; on an NPU the "
            "hand-written one was wrong (vime#274).",
            "由另一套代码为推理引擎转换权重。转换有误时，从第 0 步起训练与 rollout 的 log_probs "
            "就有差距；NPU 上手写的转换曾经有误（vime#274）。",
        ),
        Severity.WARNING,
        Strength.SEMANTIC,
        Rung.ROLLOUT,
        instead=True,
        fix=Text(
            "Export the weights on both sides and compare them with the checkpoint.",
            "在两侧导出权重，并与权重文件对比。",
        ),
    )


FIRES = (Example("actor.parallel_options.use_mbridge", (True, False)),)
SILENT: tuple[Example, ...] = ()  # it has something to say about every difference
