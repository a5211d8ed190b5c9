"""The answer to the user's question, in one record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from align.core.rung import Rung
from align.core.text import Text


class VerdictStatus(str, Enum):
    """What the ladder as a whole showed."""

    ALIGNED = "aligned"
    DIVERGED = "diverged"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not_comparable"


class Confidence(str, Enum):
    """How well the recorded evidence supports the named cause."""

    HIGH = "high"  # a difference whose mechanism explains the earliest recorded symptom
    MEDIUM = "medium"  # a difference known to change results; no later symptom was recorded
    NONE = "none"  # no recorded difference explains what is seen: the cause is unknown


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which link breaks first, and what explains it.

    ``cause`` is None whenever no recorded difference has a mechanism that explains the earliest
    symptom; ``next_step`` then names the cheapest experiment that narrows it down.
    """

    status: VerdictStatus
    rung: Rung | None
    finding_id: str | None
    sentence: Text
    cause: Text | None
    confidence: Confidence
    fix: Text | None = None
    next_step: Text | None = None
    not_recorded: tuple[Rung, ...] = ()
