"""Where a capture looks on in TRL's GRPOTrainer; names are those of 0.20 to 1.16."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_MODULE = "trl.trainer.grpo_trainer"


def _point(attribute: str, tap: str, yields: str) -> HookPoint:
    return HookPoint(_MODULE, attribute, tap, "trl", (0, 20), yields)


HOOKS = (
    _point("GRPOTrainer.train", "trl:train", "configuration, versions"),
    _point(
        "GRPOTrainer._generate_and_score_completions",
        "trl:generated",
        "rollouts and trainer inputs of a generation, each rank its own rows",
    ),
    _point("GRPOTrainer._calculate_rewards", "trl:rewarded", "rewards by function"),
    _point(
        "GRPOTrainer.compute_loss",
        "trl_sketches:loss_computed",
        "sketches of the model's outputs, gradients, updates and weights",
    ),
    _point("GRPOTrainer.training_step", "trl:trained", "gradient norms"),
    _point("GRPOTrainer.log", "trl:log", "metrics"),
)
