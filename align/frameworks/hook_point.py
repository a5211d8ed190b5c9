"""A place in a framework where a capture looks on; the tables of hook points are made of these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HookPoint:
    """One function or method that a capture wraps once its module is imported.

    Args:
        module: that the process imports, such as "verl.trainer.ppo.ray_trainer".
        attribute: dotted path in it, such as "RayPPOTrainer.fit".
        tap: what looks on, as "module:function" below `dumps.capture.taps`.
        package: distribution whose version decides.
        since: first version (major, minor) that has it.
        before: first version that has it no more; None while all have it.
        yields: what a capture takes there.
    """

    module: str
    attribute: str
    tap: str
    package: str
    since: tuple[int, int]
    yields: str
    before: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """Where it is, as messages say it."""
        return f"{self.module}:{self.attribute}"

    def fits(self, version: tuple[int, int]) -> bool:
        """Tell whether a version has this hook point."""
        return self.since <= version and (self.before is None or version < self.before)


def hooked_modules(points: Iterable[HookPoint]) -> dict[str, tuple[HookPoint, ...]]:
    """Group hook points by the module whose import installs them."""
    grouped: dict[str, tuple[HookPoint, ...]] = {}
    for point in points:
        grouped[point.module] = (*grouped.get(point.module, ()), point)
    return grouped
