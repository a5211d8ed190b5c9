"""Where a replay takes part in TRL's GRPOTrainer; names are those of 1.0 to 1.16."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_MODULE = "trl.trainer.grpo_trainer"


def _point(attribute: str, tap: str, yields: str) -> HookPoint:
    return HookPoint(_MODULE, attribute, tap, "trl", (1, 0), yields)


HOOKS = (
    _point("GRPOTrainer.train", "trl:train", "checks before step 1"),
    _point("GRPOTrainer._get_train_sampler", "trl_order:sampler", "the row order"),
    _point("GRPOTrainer._calculate_rewards", "trl:rewards", "rewards"),
    _point("GRPOTrainer._generate_single_turn", "trl:generate", "responses"),
    _point("GRPOTrainer._generate_and_score_completions", "trl:consumed", "what was used"),
)
