"""Expert parallelism of training can decide the gap to the rollout engine.

Source: NeMo-RL#4243, Nemotron-3-Nano-30B-A3B: of all single settings tried only the degree of
expert parallelism in training removed the divergence of log_probs.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.config.schema.rollout import MISMATCH_METRICS
from align.core.finding import Severity
from align.core.text import Text

FIELDS = ("actor.expert_parallel_size",)


def rule(case: Case) -> Ruling | None:
    """Warn where the model has experts on both sides."""
    if not all(case.values("model.num_experts")):
        return None
    return Ruling(
        Text(
            "The model has experts: in one report the expert parallel size alone decided how far "
            "training and rollout log_probs were apart (NeMo-RL#4243).",
            "模型含专家：有报告称仅专家并行度就决定了训练与 rollout log_probs 的差距"
            "（NeMo-RL#4243）。",
        ),
        Severity.WARNING,
        instead=True,
        signature=MISMATCH_METRICS,
    )


FIRES = (Example("actor.expert_parallel_size", (1, 8), both={"model.num_experts": 128}),)
SILENT = (Example("actor.expert_parallel_size", (1, 8)),)
