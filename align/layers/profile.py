"""The errors of one walk along its order of computation, for the report's figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from align.core.figure import Point, Profile
from align.core.text import Text
from align.layers.floor import layer_of
from align.layers.measure import difference
from align.layers.walk import Compared, Records, Walk
from dumps.store.tensor_records import Phase

MAX_LATER = 3
"""Further steps that the heat map shows beside the first."""

_BEFORE_KIND = re.compile(r"^.*?(?:layers|h|blocks)\.\d+\.?")
_ROOT = re.compile(r"^model\.")


def profiles(
    name: str,
    title: Text,
    walked: Walk,
    step: int,
    later: Sequence[tuple[int, Records, Records]] = (),
) -> tuple[Profile, ...]:
    """Return the profile of a step and of later ones; none where nothing was compared.

    Args:
        later: step, the reference's and the candidate's records; held against the limits of the
            first step.
    """
    if not walked.compared:
        return ()
    marked = next((i for i, each in enumerate(walked.compared) if each.departs), None)
    points = tuple(_point(each, each.difference.relative) for each in walked.compared)
    further = (
        Profile(name, title, number, _later(walked.compared, own, other))
        for number, own, other in later[:MAX_LATER]
    )
    return (Profile(name, title, step, points, marked), *further)


def kind_of(name: str) -> str:
    """Return what a module is within its layer; "layer" for a whole one."""
    if layer_of(name) is None:
        return _ROOT.sub("", name)
    rest = _BEFORE_KIND.sub("", name)
    return f"layer{rest}" if rest in ("", " (input)") else rest


def _point(compared: Compared, error: float) -> Point:
    record, (name, _) = compared.reference, _address(compared)
    dtypes = dict.fromkeys((record.dtype, compared.candidate.dtype))
    return Point(
        name,
        layer_of(name),
        kind_of(name),
        error,
        compared.limit.value,
        f"{' / '.join(dtypes)} {list(record.shape)}",
    )


def _later(compared: Sequence[Compared], own: Records, other: Records) -> tuple[Point, ...]:
    points = []
    for each in compared:
        address = _address(each)
        if address in own and address in other and own[address].digest == other[address].digest:
            points.append(_point(each, difference(own[address], other[address]).relative))
    return tuple(points)


def _address(compared: Compared) -> tuple[str, int]:
    record = compared.reference
    suffix = " (input)" if record.phase == Phase.INPUT else ""
    return record.name + suffix, record.update
