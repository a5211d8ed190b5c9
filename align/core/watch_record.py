"""What a live watch saw of a job: how far each metric was from its reference, and its alarms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alarm:
    """The candidate has left the reference.

    Args:
        step: at which it is known, as the reference numbers it.
        since: first step of the window that shows it; ``step`` where a value is not a number.
        reference, candidate: means over that window.
        deviation: difference in standard errors; infinite where a value is not a number.
    """

    metric: str
    step: int
    since: int
    reference: float
    candidate: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Trace:
    """One metric's test, step by step.

    Args:
        steps: in the reference's numbering.
        deviations: the mean difference of the window that is farthest out, in standard errors.
        sizes: the same difference, as a share of the smallest one that matters.
        limit: standard errors beyond which it alarms, if its size is 1 or more too.
    """

    metric: str
    steps: tuple[int, ...]
    deviations: tuple[float, ...]
    sizes: tuple[float, ...]
    limit: float


@dataclass(frozen=True, slots=True)
class WatchRecord:
    """The file that ``align watch -o`` writes.

    Args:
        source: the file.
        reference, candidate: as they were given.
        step: last common step; None where there was none.
        last_step: of the reference.
    """

    source: str
    reference: str
    candidate: str
    step: int | None
    last_step: int
    alarms: tuple[Alarm, ...]
    traces: tuple[Trace, ...]
