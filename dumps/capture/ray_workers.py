"""Hand the capture's environment to the workers of a Ray cluster that was there before."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from dumps.capture.environment import worker_variables
from dumps.capture.failures import FailureLog


def hook_ray(ray: ModuleType, log: FailureLog) -> None:
    """Have ``ray.init`` add our variables to the ones it is given for workers."""
    original = ray.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        with log.kept("ray:init"):
            kwargs["runtime_env"] = with_variables(kwargs.get("runtime_env"))
        return original(*args, **kwargs)

    ray.init = init  # type: ignore[attr-defined]


def with_variables(runtime_env: Any) -> Any:
    """Return a runtime environment with our variables; one that is no mapping as it is."""
    if runtime_env is None:
        runtime_env = {}
    if not isinstance(runtime_env, Mapping):
        return runtime_env
    given = dict(runtime_env.get("env_vars") or {})
    return {**runtime_env, "env_vars": {**given, **worker_variables(given)}}
