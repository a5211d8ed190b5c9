"""Where a capture looks on in TRL's GRPOTrainer."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_MODULE = "trl.trainer.grpo_trainer"


HOOKS = (
    HookPoint(
        _MODULE,
        "GRPOTrainer._generate_and_score_completions",
        "trl:generated",
        "trl",
        (0, 20),
        "rollouts and trainer inputs of a step, a file a rank",
    ),
)
