"""Where a capture looks on in verl 0.5 to 0.9, read from the sources of the tags v0.5.0 to v0.9.0.

The driver (Ray's task runner) sees the whole batch of a step, the workers see micro-batches,
gradients and weights. 0.9 has two trainers: V1 keeps its batch in a TransferQueue, V0 is the older
`RayPPOTrainer`.
"""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_RAY_TRAINER = "verl.trainer.ppo.ray_trainer"
_V1 = "verl.trainer.ppo.v1.trainer_base"
_ENGINE = "verl.workers.engine.fsdp.transformer_impl"
_MEGATRON = "verl.workers.engine.megatron.transformer_impl"
_WORKERS = "verl.workers.engine_workers"
_DP_ACTOR = "verl.workers.actor.dp_actor"
_VLLM = "verl.workers.rollout.vllm_rollout.utils"
_MEGATRON_ACTOR = "verl.workers.actor.megatron_actor"
_OLD_WORKERS = "verl.workers.fsdp_workers"
_OLD_MEGATRON_WORKERS = "verl.workers.megatron_workers"


def verl_point(
    module: str,
    attribute: str,
    tap: str,
    since: tuple[int, int],
    yields: str,
    before: tuple[int, int] | None = None,
) -> HookPoint:
    """Return a place in verl, from release ``since`` on and before ``before``."""
    return HookPoint(module, attribute, tap, "verl", since, yields, before)


HOOKS = (
    verl_point(_V1, "PPOTrainer.fit", "verl_driver:trainer", (0, 9), "configuration, versions"),
    verl_point(
        _V1,
        "PPOTrainer._compute_metrics",
        "verl_driver:queued_batch",
        (0, 9),
        "rollouts and trainer inputs of a step, out of the TransferQueue",
    ),
    verl_point(
        _RAY_TRAINER, "RayPPOTrainer.fit", "verl_driver:trainer", (0, 5), "configuration, versions"
    ),
    verl_point(
        _RAY_TRAINER,
        "compute_data_metrics",
        "verl_driver:padded_batch",
        (0, 5),
        "rollouts and trainer inputs of a step, as the V0 trainer holds them",
    ),
    verl_point("verl.utils.tracking", "Tracking.log", "verl_driver:metrics", (0, 5), "metrics"),
    verl_point(_ENGINE, "FSDPEngine.initialize", "verl_worker:engine_ready", (0, 8), "modules"),
    verl_point(
        _ENGINE, "FSDPEngine.optimizer_step", "verl_worker:engine_update", (0, 8), "gradients"
    ),
    verl_point(
        _MEGATRON, "MegatronEngine.initialize", "verl_megatron:engine_ready", (0, 8), "modules"
    ),
    verl_point(
        _MEGATRON, "MegatronEngine.optimizer_step", "verl_worker:engine_update", (0, 8), "gradients"
    ),
    verl_point(
        _MEGATRON,
        "MegatronEngineWithLMHead.forward_step",
        "verl_megatron:chunk_forward",
        (0, 8),
        "which micro-batch a module's output belongs to",
    ),
    verl_point(
        _MEGATRON,
        "MegatronEngineWithLMHead.prepare_model_inputs",
        "verl_megatron:chunk_inputs",
        (0, 8),
        "sequences of a micro-batch; cu_seqlens",
    ),
    verl_point(
        _MEGATRON,
        "MegatronEngine.get_per_tensor_param",
        "verl_megatron:weights_read",
        (0, 8),
        "weights as they are sent",
    ),
    verl_point(
        _MEGATRON,
        "MegatronEngine.get_per_tensor_param_shard",
        "verl_megatron:weights_read",
        (0, 9),
        "weights as they are sent, shard by shard",
    ),
    verl_point(
        _ENGINE,
        "FSDPEngineWithLMHead.forward_step",
        "verl_worker:engine_forward",
        (0, 8),
        "which micro-batch a module's output belongs to; cu_seqlens",
    ),
    verl_point(
        "verl.workers.utils.losses",
        "get_policy_loss_fn",
        "verl_worker:policy_loss",
        (0, 8),
        "new and old log_probs, advantages and loss of a micro-batch",
    ),
    verl_point(
        "verl.workers.utils.losses",
        "ppo_loss",
        "verl_worker:loss_terms",
        (0, 9),
        "which terms a micro-batch's loss has",
    ),
    verl_point(
        "verl.workers.utils.losses",
        "agg_loss",
        "verl_worker:term_summed",
        (0, 9),
        "entropy of every token; sums of entropy and KL of a micro-batch",
    ),
    verl_point(
        "verl.workers.utils.losses",
        "compute_value_loss",
        "verl_worker:value_loss",
        (0, 9),
        "the critic's predictions, values, returns and loss of a micro-batch",
    ),
    verl_point(
        _WORKERS,
        "ActorRolloutRefWorker.update_weights",
        "verl_worker:weights_sent",
        (0, 8),
        "end of a step, its number, weights",
    ),
    verl_point(
        _VLLM,
        "vLLMColocateWorkerExtension.update_weights_from_ipc",
        "verl_engine:vllm_loaded",
        (0, 9),
        "weights of the rollout engine",
    ),
    *(
        verl_point(
            actor,
            "compute_policy_loss",
            "verl_worker:policy_loss_called",
            (0, 5),
            "new and old log_probs, advantages and loss of a micro-batch",
            before=(0, 6),
        )
        for actor in (_DP_ACTOR, _MEGATRON_ACTOR)
    ),
    *(
        verl_point(
            actor,
            "get_policy_loss_fn",
            "verl_worker:policy_loss",
            (0, 5),
            "new and old log_probs, advantages and loss of a micro-batch",
            before=(0, 8),
        )
        for actor in (_DP_ACTOR, _MEGATRON_ACTOR)
    ),
    verl_point(
        _DP_ACTOR,
        "DataParallelPPOActor._optimizer_step",
        "verl_worker:actor_update",
        (0, 5),
        "gradients",
        before=(0, 8),
    ),
    verl_point(
        _MEGATRON_ACTOR,
        "MegatronPPOActor.update_policy",
        "verl_megatron:actor_update",
        (0, 5),
        "gradients",
        before=(0, 8),
    ),
    *(
        verl_point(
            workers,
            "ActorRolloutRefWorker.update_actor",
            "verl_worker:actor_updated",
            (0, 5),
            "end of a step",
            before=(0, 8),
        )
        for workers in (_OLD_WORKERS, _OLD_MEGATRON_WORKERS)
    ),
    *(
        verl_point(
            workers,
            "ActorRolloutRefWorker.load_checkpoint",
            "verl_worker:resumed",
            (0, 5),
            "the step a resumed run starts after",
            before=(0, 8),
        )
        for workers in (_OLD_WORKERS, _OLD_MEGATRON_WORKERS)
    ),
)
