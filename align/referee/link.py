"""One link of a step: what the configuration declares, what was recorded, what comes out again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from align.core.text import Text


class LinkVerdict(str, Enum):
    """What recomputing a link showed."""

    AS_DECLARED = "as declared"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class Link:
    """A recorded number beside the one that its inputs give in float64.

    Args:
        name: of the link, such as "actor/kl_loss".
        declared: what the configuration says of it.
        verdict: whether both are the same to rounding.
        recorded, recomputed: at the place with the largest departure.
        tolerance: what rounding explains of their difference.
        note: where it was taken, or what is computed instead.
    """

    name: str
    declared: Text
    verdict: LinkVerdict
    recorded: float | None = None
    recomputed: float | None = None
    tolerance: float | None = None
    note: Text | None = None


def not_recorded(name: str, declared: Text, what: Text) -> Link:
    """Return a link that lacks something."""
    return Link(name, declared, LinkVerdict.NOT_RECORDED, note=what)
