"""vLLM's cascade attention is less exact on some GPUs, so a reference can be the worse side.

Source: vllm#22103 and verl's FAQ: with it, on other GPUs than Hopper and with long multi-turn
prompts, rollout_probs_diff_mean was above 0.01; below 0.005 is normal.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.config.schema.rollout import MISMATCH_METRICS
from align.core.finding import Severity
from align.core.text import Text

FIELDS = ("rollout.engine_options.*disable_cascade_attn",)


def rule(case: Case) -> Ruling | None:
    """Warn: the gap between rollout and training shows it."""
    return Ruling(
        Text(
            "With cascade attention training/rollout_probs_diff_mean has been above 0.01 where "
            "0.005 is normal (vllm#22103): look at the reference's own gap first.",
            "启用 cascade attention 时 training/rollout_probs_diff_mean 曾高于 0.01，"
            "而正常应低于 0.005（vllm#22103）：请先检查参考自身的差距。",
        ),
        Severity.WARNING,
        instead=True,
        signature=MISMATCH_METRICS,
    )


FIRES = (Example("rollout.engine_options.kwargs.vllm.disable_cascade_attn", (True, False)),)
SILENT: tuple[Example, ...] = ()  # it has something to say about every difference
