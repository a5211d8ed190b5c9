"""Where a capture looks on in MindSpeed-RL, read from branches 2.0.0 to 2.3.0 and master."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_WORKER = "workers.actor_hybrid_worker"
_ENGINE = "models.base.base_training_engine"
_BEGINS = "the step, and the actor's modules and parameters"
_LOSS_YIELDS = "new, old and reference log_probs, advantages and loss of a micro-batch"


def _point(
    module: str, attribute: str, tap: str, yields: str, since: tuple[int, int] = (0, 0)
) -> HookPoint:
    place = f"mindspeed_rl.{module}"
    return HookPoint(place, attribute, f"mindspeed_rl:{tap}", "mindspeed_rl", since, yields)


def _loss(name: str, attribute: str) -> HookPoint:
    return _point(f"models.loss.{name}_actor_loss_func", attribute, "policy_loss", _LOSS_YIELDS)


HOOKS = (
    _point(_WORKER, "ActorHybridWorkerBase.generate_sequences", "generating", _BEGINS),
    _point(_WORKER, "ActorHybridWorkerBase.enter_infer_mode", "generating", _BEGINS, (2, 2)),
    _point(
        "workers.resharding.vllm_weight_container",
        "MegatronStyleVllmWeightContainer.get_infer_params",
        "reading",
        "the actor's weights",
    ),
    _point(
        "workers.resharding.megatron_sharding_manager",
        "MegatronShardingManager.enter_infer_mode",
        "resharding",
        "the rollout engine's weights",
    ),
    _point(
        _ENGINE,
        "BaseTrainingEngine._get_forward_batch_info",
        "batched",
        "which ids of a micro-batch are padding",
    ),
    _point(
        "workers.base_worker",
        "BaseWorker.collect_transfer_dock_data",
        "collected",
        "responses with token ids, by their row in the dock",
    ),
    _point(
        "workers.base_worker",
        "BaseWorker.dispatch_transfer_dock_data",
        "dispatched",
        "the rows of the update, and their scores",
    ),
    _point("utils.loggers", "Loggers.info", "logged", "metrics that the trainer prints"),
    _loss("grpo", "GRPOActorLossFunc._compute_grpo_policy_loss"),
    _loss("dapo", "DAPOActorLossFunc._compute_dapo_policy_loss"),  # 2.2.0 and later
    _loss("ppo", "PPOActorLossFunc._compute_ppo_policy_loss"),  # 2.2.0 and later
    _point(_ENGINE, "BaseTrainingEngine.update", "engine", "gradients"),
    _point(_WORKER, "ActorHybridWorkerBase.update", "updated", "end of a step"),
)
