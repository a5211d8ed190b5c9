"""Have verl start the recipe's rollout engine as one that tells a capture what it holds."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from verl.workers.rollout.replica import RolloutReplicaRegistry


def _load() -> Any:
    module: Any = import_module("verl_cpu_rollout")
    module.HFServer = import_module("looked_at_server").LookedAtServer
    return module.HFReplica


RolloutReplicaRegistry.register("hf_cpu", _load)
