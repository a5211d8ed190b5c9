"""A setting that differs between two runs, and the values it can take between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from align.core.config_value import ConfigLeaf


class KnobKind(str, Enum):
    """How a knob is turned."""

    CONFIG = "config"  # an override on the command line
    ENVIRONMENT = "environment"  # a variable of the process
    VERSION = "version"  # a command that comes before the trial's own
    COMMIT = "commit"  # a state of the user's own code


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob. Level 0 is the reference's value, the last level the candidate's.

    Args:
        values: one a level, in order; only versions and commits have more than two. None unsets an
            environment variable and is null in a configuration.
        commands: of a version: what to run before the trial's command, one a level; "" for nothing.
    """

    name: str
    kind: KnobKind
    values: tuple[ConfigLeaf, ...]
    commands: tuple[str, ...] = ()

    @property
    def last(self) -> int:
        """The candidate's level."""
        return len(self.values) - 1


Setting = tuple[int, ...]
"""The level of every knob, in the order of the plan."""


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A knob, by its place in the plan, taken from ``level - 1`` to ``level``."""

    knob: int
    level: int


def changes_of(knobs: tuple[Knob, ...]) -> tuple[Change, ...]:
    """Return every change between the reference's settings and the candidate's."""
    return tuple(Change(i, level) for i, k in enumerate(knobs) for level in range(1, k.last + 1))


def setting_of(changes: tuple[Change, ...], num_knobs: int) -> Setting:
    """Return the reference's settings with some changes made; of one knob the furthest counts."""
    levels = [0] * num_knobs
    for change in changes:
        levels[change.knob] = max(levels[change.knob], change.level)
    return tuple(levels)


def without(changes: tuple[Change, ...], gone: tuple[Change, ...]) -> tuple[Change, ...]:
    """Return the changes that are left when some, and what follows them on their knobs, go."""
    first = {g.knob: min(o.level for o in gone if o.knob == g.knob) for g in gone}
    return tuple(c for c in changes if c.level < first.get(c.knob, c.level + 1))
