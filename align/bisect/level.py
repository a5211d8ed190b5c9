"""One level of a drift: what it says of the place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from align.core.finding import Evidence
from align.core.text import Text


class LevelStatus(str, Enum):
    """What the records say on one level."""

    FOUND = "found"  # the drift is in a part of it
    OPEN = "open"  # recorded, and it does not narrow the drift down
    MISSING = "missing"  # not recorded


@dataclass(frozen=True, slots=True)
class Level:
    """One level.

    Args:
        name: "step", "metric", "task", "row", "token" or "layer".
        place: where it is; for the other two states, why that is not known.
        findings: ids of the report's findings that say so.
        missing: how to record what is missing.
    """

    name: str
    status: LevelStatus
    place: Text
    findings: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    missing: Text | None = None
