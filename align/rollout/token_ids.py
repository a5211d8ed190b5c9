"""Lists of token ids, which rollout dumps hand on as their JSON."""

from __future__ import annotations

import orjson

from align.core.finding import Scalar

Ids = tuple[int, ...]


def ids_of(value: Scalar) -> Ids | None:
    """Return a list of whole numbers; None for anything else."""
    if not isinstance(value, str) or not value.startswith("["):
        return None
    try:
        ids = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    return tuple(ids) if all(type(item) is int for item in ids) else None
