"""What the keys of a msprobe ``dump.json`` say.

An API is ``{prefix}.{api}.{counter}.{direction}``, a module ``Module.{path}.{class}.{direction}.
{counter}``, the gradients of its parameters ``Module.{path}.{class}.parameters_grad.{counter}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Direction(str, Enum):
    """Which pass an entry was recorded in."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PARAMETERS_GRAD = "parameters_grad"


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Args:
        path: of the module from the model's root, None for an API.
        name: class of the module, or prefix and name of the API, such as ``Tensor.__add__``.
        call: how often it was called before, from 0; an API counts over the whole process.
    """

    path: str | None
    name: str
    direction: Direction
    call: int


_API = re.compile(r"(?P<name>[A-Za-z]+\..+)\.(?P<call>\d+)\.(?P<direction>forward|backward)")
_MODULE = re.compile(
    r"Module\.(?P<path>.+)\.(?P<name>[^.]+)\.(?P<direction>forward|backward|parameters_grad)"
    r"\.(?P<call>\d+)"
)


def parse_key(text: str) -> Key | None:
    """Take a key apart; None for one of another form."""
    found = _MODULE.fullmatch(text)
    path = found["path"] if found else None
    found = found or _API.fullmatch(text)
    if found is None:
        return None
    return Key(path, found["name"], Direction(found["direction"]), int(found["call"]))
