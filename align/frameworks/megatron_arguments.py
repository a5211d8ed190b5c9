"""Every command-line argument of Megatron and of MindSpeed-LLM, with flags and defaults.

Source: `megatron/training/arguments.py` of core_v0.12.1, MindSpeed-LLM 2.2.0 and the MindSpeed
2.2.0_core_r0.12.1 it runs on, by reading their ``add_argument`` calls.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from align.core.config_value import ConfigLeaf

_ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument.

    Args:
        name: as the block of printed arguments spells it.
        flags: as a command line spells it; ``--no-x`` flags often set the argument ``x``. None for
            a name that is only printed.
        action: "store", "store_true" or "store_false".
        megatron: default of Megatron.
        mindspeed_llm: default where MindSpeed-LLM is in use.
        is_megatron: whether Megatron itself has it.
        family: prefix of the field it becomes, or why it does not matter, as one word.
    """

    name: str
    flags: tuple[str, ...]
    action: str
    megatron: ConfigLeaf
    mindspeed_llm: ConfigLeaf
    is_megatron: bool
    family: str

    @property
    def is_field(self) -> bool:
        """Whether it becomes a field of the common schema."""
        return "." in self.family


@cache
def arguments() -> Mapping[str, Argument]:
    """Return all arguments by name."""
    text = files("align.frameworks").joinpath("megatron_arguments.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    found = (
        Argument(
            row["name"],
            tuple(filter(None, row["flags"].split(","))),
            row["action"],
            None if row["megatron"] == _ABSENT else _literal(row["megatron"]),
            _literal(row["mindspeed_llm"]),
            row["megatron"] != _ABSENT,
            row["family"],
        )
        for row in rows
    )
    return MappingProxyType({argument.name: argument for argument in found})


@cache
def by_flag() -> Mapping[str, Argument]:
    """Return all arguments by each of their flags."""
    return MappingProxyType(
        {f: argument for argument in arguments().values() for f in argument.flags}
    )


def _literal(text: str) -> ConfigLeaf:
    value = ast.literal_eval(text)
    return tuple(value) if isinstance(value, list) else value
