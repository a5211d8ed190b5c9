"""How fields of the common schema become keys of a framework: the other way of `config_table.py`.

A framework that configurations can be translated to has, beside its tables:

- ``config_write(values)``: assignments for the fields whose key is not theirs alone, or whose
  value has another unit or form. ``values`` are the fields to write, in the schema's unit. A field
  that it names with no key needs none: the framework can do nothing else.
- ``CONFIG_WRITTEN_AS``: field -> key where several keys could carry it; else the first key of the
  framework's table counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from align.core.config_value import ConfigLeaf

Fields = Mapping[str, ConfigLeaf]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A key to set, None where the field needs none, and the fields that it is made from."""

    key: str | None
    value: ConfigLeaf
    fields: tuple[str, ...]


def nothing_to_write(*fields: str) -> Assignment:
    """Return the answer for fields that follow from other keys or cannot be chosen."""
    return Assignment(None, None, fields)
