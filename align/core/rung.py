"""The ladder's rungs in causal order, and what comparing one of them gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from align.core.text import Text

if TYPE_CHECKING:
    from align.core.figure import CurvePair, Grid, Profile, Table
    from align.core.finding import Finding


class Rung(str, Enum):
    """One link of the training chain. Definition order is causal order."""

    ENVIRONMENT = "environment"
    CONFIG = "config"
    TOKENIZER = "tokenizer"
    DATA = "data"
    ROLLOUT = "rollout"
    TOKENS = "tokens"
    FORWARD = "forward"
    REWARD = "reward"
    ADVANTAGE = "advantage"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    WEIGHT_SYNC = "weight_sync"
    CURVES = "curves"
    EVALS = "evals"

    @property
    def position(self) -> int:
        """0-based place in causal order."""
        return _POSITION[self]


RUNGS: tuple[Rung, ...] = tuple(Rung)
_POSITION = {rung: position for position, rung in enumerate(RUNGS)}


class RungStatus(str, Enum):
    """What comparing one rung showed."""

    ALIGNED = "aligned"
    DIVERGED = "diverged"
    UNDECIDED = "undecided"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Missing:
    """An artifact a rung would need, and how to record it."""

    artifact: Text
    side: str  # "reference", "candidate" or "both"
    how_to_record: Text


@dataclass(frozen=True, slots=True)
class RungResult:
    """The comparison of two runs on one link of the chain.

    ``findings`` keep the order in which a reader should see them; ``tables``, ``curves``,
    ``profiles`` and ``grids`` are what the report draws for this rung.
    """

    name: Rung
    status: RungStatus
    summary: Text
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()
    tables: tuple[Table, ...] = ()
    curves: tuple[CurvePair, ...] = ()
    profiles: tuple[Profile, ...] = ()
    grids: tuple[Grid, ...] = ()
