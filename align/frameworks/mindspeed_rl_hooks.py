"""Where a capture looks on in MindSpeed-RL, read from branches 2.0.0 to 2.3.0 and master."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_WORKER = "workers.actor_hybrid_worker"
_LOSS_YIELDS = "new, old and reference log_probs, advantages and loss of a micro-batch"


def _point(module: str, attribute: str, tap: str, yields: str) -> HookPoint:
    place = f"mindspeed_rl.{module}"
    return HookPoint(place, attribute, f"mindspeed_rl:{tap}", "mindspeed_rl", (0, 0), yields)


def _loss(name: str, attribute: str) -> HookPoint:
    return _point(f"models.loss.{name}_actor_loss_func", attribute, "policy_loss", _LOSS_YIELDS)


HOOKS = (
    _point(
        "workers.base_worker",
        "BaseWorker.collect_transfer_dock_data",
        "collected",
        "responses with token ids, by their row in the dock",
    ),
    _loss("grpo", "GRPOActorLossFunc._compute_grpo_policy_loss"),
    _loss("dapo", "DAPOActorLossFunc._compute_dapo_policy_loss"),  # 2.2.0 and later
    _loss("ppo", "PPOActorLossFunc._compute_ppo_policy_loss"),  # 2.2.0 and later
    _point("models.base.base_training_engine", "BaseTrainingEngine.update", "engine", "gradients"),
    _point(_WORKER, "ActorHybridWorkerBase.update", "updated", "end of a step"),
)
