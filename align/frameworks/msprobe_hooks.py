"""Where msprobe looks on for a capture with `--backend msprobe`: the actor's update."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint


def _point(
    place: str,
    tap: str,
    package: str,
    since: tuple[int, int],
    before: tuple[int, int] | None = None,
) -> HookPoint:
    module, _, attribute = place.partition(":")
    return HookPoint(module, attribute, f"msprobe:{tap}", package, since, "modules", before)


HOOKS = (
    _point(
        "verl.workers.engine_workers:ActorRolloutRefWorker.update_actor",
        *("verl_update", "verl", (0, 8)),
    ),
    _point(
        "verl.workers.fsdp_workers:ActorRolloutRefWorker.update_actor",
        *("verl_update", "verl", (0, 5), (0, 8)),
    ),
    _point(
        "mindspeed_rl.workers.actor_hybrid_worker:ActorHybridWorkerBase.update",
        *("mindspeed_rl_update", "mindspeed_rl", (0, 0)),
    ),
    _point("trl.trainer.grpo_trainer:GRPOTrainer.compute_loss", "trl_loss", "trl", (0, 0)),
    _point("trl.trainer.grpo_trainer:GRPOTrainer.training_step", "trl_step", "trl", (0, 0)),
)
