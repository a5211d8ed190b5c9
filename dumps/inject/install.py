"""Take part in a replay: each driver goes in when the module it drives is imported."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import ModuleType

import wrapt

from align.frameworks.hook_point import HookPoint, hooked_modules
from dumps.capture.failures import FailureLog
from dumps.capture.install import installed_version
from dumps.capture.ray_workers import hook_ray
from dumps.inject.problem import Problem
from dumps.inject.replay import Replay, current
from dumps.inject.substitute import substitute

TABLES = (
    "align.frameworks.verl_replay",
    "align.frameworks.stack_replay",
    "align.frameworks.trl_replay",
    "align.frameworks.mindspeed_rl_replay",
)
_DRIVERS = "dumps.inject.drivers"


@cache
def install() -> Replay | None:
    """Register every hook of the tables, once a process; do nothing where no plan is named."""
    replay = current()
    if replay is not None:
        for module, points in hooked_modules(hook_points()).items():
            wrapt.register_post_import_hook(_Hook(replay, points), module)
        log = FailureLog(replay.plan.run, "replay")
        wrapt.register_post_import_hook(lambda ray: hook_ray(ray, log), "ray")
    return replay


def hook_points() -> Iterator[HookPoint]:
    """Yield every framework's hook points."""
    for table in TABLES:
        yield from import_module(table).HOOKS


class _Hook:
    """Puts the drivers of one module in."""

    def __init__(self, replay: Replay, points: tuple[HookPoint, ...]) -> None:
        self._replay, self._points = replay, points

    def __call__(self, module: ModuleType) -> None:
        for point in self._points:
            version = installed_version(point.package)
            if version is None or point.fits(version):
                put_in(self._replay, module, point)


def put_in(replay: Replay, module: ModuleType, point: HookPoint) -> None:
    """Drive one hook point of an imported module.

    Raises:
        ReplayRefused: The module has no such attribute: its version is one we do not know.
    """
    driver_module, _, function = point.tap.partition(":")
    driver = getattr(import_module(f"{_DRIVERS}.{driver_module}"), function)
    for attribute in point.attribute.split("|"):  # alternatives of one version's patch releases
        owner_path, _, name = attribute.rpartition(".")
        try:
            owner = attrgetter(owner_path)(module) if owner_path else module
            getattr(owner, name)
        except AttributeError:
            continue
        if hasattr(owner, "__ray_metadata__"):
            continue  # Ray has a copy of this class, which a change does not reach (verl 0.6.0)
        substitute(owner, name, driver, replay)
        return
    replay.refuse([Problem(f"{point.name} is not there: this version is not known")])
