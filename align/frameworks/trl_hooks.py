"""Where a capture looks on in TRL's trainers.

GRPOTrainer's names are those of 0.20 to 1.16; of DPOTrainer only 1.16 was looked at, whose models
give log_probs.
"""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_MODULES = {
    "GRPOTrainer": "trl.trainer.grpo_trainer",
    "DPOTrainer": "trl.trainer.dpo_trainer",
}


def _point(attribute: str, tap: str, yields: str) -> HookPoint:
    module = _MODULES[attribute.partition(".")[0]]
    return HookPoint(module, attribute, tap, "trl", (0, 20), yields)


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
    _point("DPOTrainer.train", "trl:train", "configuration, versions"),
    _point(
        "DPOTrainer.compute_loss",
        "trl_dpo:loss_computed",
        "token ids, log_probs and loss of every micro-batch of pairs; sketches",
    ),
    _point("DPOTrainer.training_step", "trl_dpo:trained", "gradient norms"),
    _point("DPOTrainer.log", "trl:log", "metrics"),
)
