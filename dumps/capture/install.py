"""Hook a process: each tap goes in when the module it looks at is imported."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import ModuleType

import wrapt

from align.frameworks.hook_point import HookPoint, hooked_modules
from dumps.capture.plan import Backend
from dumps.capture.ray_workers import hook_ray
from dumps.capture.session import Session, current, timed
from dumps.capture.wrap import wrap

TABLES = (
    "align.frameworks.verl_hooks",
    "align.frameworks.stack_hooks",
    "align.frameworks.trl_hooks",
    "align.frameworks.mindspeed_rl_hooks",
)
MSPROBE_TABLE = "align.frameworks.msprobe_hooks"
_TAPS = "dumps.capture.taps"


@cache
def install() -> Session | None:
    """Register every hook of the tables, once a process; do nothing where no plan is named."""
    session = current()
    if session is not None:
        points_of_plan = hook_points(session.plan.backend)
        for module, points in hooked_modules(points_of_plan).items():
            wrapt.register_post_import_hook(_Hook(session, points), module)
        wrapt.register_post_import_hook(lambda ray: hook_ray(ray, session.log), "ray")
    return session


def hook_points(backend: Backend = Backend.ALIGN) -> Iterator[HookPoint]:
    """Yield every framework's hook points."""
    for table in (*TABLES, *([MSPROBE_TABLE] if backend is Backend.MSPROBE else [])):
        yield from import_module(table).HOOKS


class _Hook:
    """Puts the taps of one module in."""

    def __init__(self, session: Session, points: tuple[HookPoint, ...]) -> None:
        self._session, self._points = session, points

    def __call__(self, module: ModuleType) -> None:
        for point in self._points:
            with self._session.log.kept(f"hooking {point.name}"):
                version = installed_version(point.package)
                if point.fits(version) if version is not None else _may_have(module, point):
                    put_in(self._session, module, point)


def _may_have(module: ModuleType, point: HookPoint) -> bool:
    """Tell whether a module of a version that is not known should have a hook point."""
    if point.since == (0, 0):
        return True
    try:
        attrgetter(point.attribute)(module)
    except AttributeError:
        return False
    return True


def put_in(session: Session, module: ModuleType, point: HookPoint) -> None:
    """Wrap one hook point of an imported module.

    Raises:
        AttributeError: The module has no such attribute.
    """
    owner_path, _, name = point.attribute.rpartition(".")
    owner = attrgetter(owner_path)(module) if owner_path else module
    tap_module, _, function = point.tap.partition(":")
    tap = getattr(import_module(f"{_TAPS}.{tap_module}"), function)
    wrap(owner, name, point.name, timed(session, tap), session.log)


def installed_version(package: str) -> tuple[int, int] | None:
    """Return major and minor version of a distribution, None where it is not installed as one."""
    try:
        found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return None
    return (int(found[1]), int(found[2])) if found else None
