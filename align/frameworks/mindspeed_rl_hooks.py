"""Where a capture looks on in MindSpeed-RL, read from branches 2.0.0 to 2.3.0 and master."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_WORKER = "mindspeed_rl.workers.actor_hybrid_worker"


def _point(module: str, attribute: str, tap: str, yields: str) -> HookPoint:
    return HookPoint(module, attribute, f"mindspeed_rl:{tap}", "mindspeed_rl", (0, 0), yields)


HOOKS = (
    _point(
        "mindspeed_rl.workers.base_worker",
        "BaseWorker.collect_transfer_dock_data",
        "collected",
        "responses with token ids, by their row in the dock",
    ),
    _point(
        "mindspeed_rl.models.loss.grpo_actor_loss_func",
        "GRPOActorLossFunc._compute_grpo_policy_loss",
        "policy_loss",
        "new, old and reference log_probs, advantages and loss of a micro-batch",
    ),
    _point(_WORKER, "ActorHybridWorkerBase.update", "updated", "end of a step"),
)
