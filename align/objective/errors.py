"""What the objective functions refuse."""

from __future__ import annotations

from align.core.errors import AlignError


class ObjectiveError(AlignError, ValueError):
    """Settings or masks for which the objective is not defined."""
