"""Where a replay takes part in MindSpeed-RL, read from branches 2.0.0 to 2.3.0 and master."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint


def _point(module: str, attribute: str, tap: str, yields: str) -> HookPoint:
    place = f"mindspeed_rl.{module}"
    return HookPoint(place, attribute, f"mindspeed_rl:{tap}", "mindspeed_rl", (0, 0), yields)


HOOKS = (
    _point(
        "workers.actor_hybrid_worker",
        "ActorHybridWorkerBase.generate_sequences",
        "worker",
        "checks before step 1, the step and the settings of a worker",
    ),
    _point(
        "models.actor_rollout_hybrid",
        "ActorRolloutHybrid.generate_sequences",
        "generate",
        "responses",
    ),
    _point(
        "workers.base_worker",
        "BaseWorker.collect_transfer_dock_data",
        "consumed",
        "what was used",
    ),
)
