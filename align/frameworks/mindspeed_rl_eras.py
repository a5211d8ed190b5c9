"""The versions of MindSpeed-RL whose configurations differ, and which of them a run's keys fit.

Sources: the configuration classes of 61effad's parent (2025-05-15), of the branches 2.0.0, 2.1.0,
2.2.0 and 2.3.0, and of master 05a90d7 (2026-04-22). A class raises on a key it does not register,
so a key tells which versions can have run it.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from align.core.config_value import ConfigLeaf, ConfigValue
from align.frameworks.config_table import version_tuple

BEFORE = "2025-04"  # mini_batch_size in sequences, rows shuffled by numpy; until 2025-05-15
MASTER = "master"
RELEASES = ("2.0.0", "2.1.0", "2.2.0", "2.3.0")
ERAS = (BEFORE, *RELEASES, MASTER)
ASSUMED_VERSION = "2.3.0"
_BEFORE_ENDS = "2025-05-15"
_NOT_REGISTERED, _NO_DEFAULT = "-", "?"
_ROLES = {"actor": "actor", "ref": "actor", "critic": "actor", "reward": "actor"}


def era_of(version: str | None) -> str | None:
    """Return the era a stated version belongs to, None where it is none of them.

    A version is a release ("2.1.0", "v2.1"), "master", or a date of before 2025-05-15.
    """
    text = (version or "").strip().lower()
    if text == MASTER:
        return MASTER
    if re.fullmatch(r"20\d\d(-\d\d){1,2}", text):
        return BEFORE if text < _BEFORE_ENDS else None
    pair = version_tuple(text)
    return next((era for era in RELEASES if version_tuple(era) == pair), None) if pair else None


def is_before(version: str | None) -> bool:
    """Tell whether a version is of before 2025-05-15."""
    return era_of(version) == BEFORE


def fitting_eras(values: Mapping[str, ConfigValue]) -> tuple[str, ...]:
    """Return the eras whose classes register the most of these keys, the one to assume first.

    Args:
        values: keys as `mindspeed_rl_config.config_view` names them.
    """
    known = {_class_key(key) for key in values} & set(_table())
    if not known:
        return ()
    missing = {
        era: sum(key not in defaults_of(era, with_unset=True) for key in known) for era in ERAS
    }
    fewest = min(missing.values())
    fits = [era for era in ERAS if missing[era] == fewest]
    assumed = ASSUMED_VERSION if ASSUMED_VERSION in fits else fits[-1]
    return assumed, *(era for era in fits if era != assumed)


@cache
def defaults_of(era: str, *, with_unset: bool = False) -> Mapping[str, ConfigLeaf]:
    """Return the defaults of an era by key; ``with_unset`` adds keys that must be set, as None."""
    rows = _table().items()
    return MappingProxyType(
        {
            key: None if row[era] == _NO_DEFAULT else _literal(row[era])
            for key, row in rows
            if row[era] != _NOT_REGISTERED and (with_unset or row[era] != _NO_DEFAULT)
        }
    )


def _class_key(key: str) -> str:
    section, _, rest = key.partition(".")
    return f"{_ROLES.get(section, section)}.{rest}"


@cache
def _table() -> Mapping[str, Mapping[str, str]]:
    text = files("align.frameworks").joinpath("mindspeed_rl_defaults.tsv")
    return {row["key"]: row for row in _rows(text.read_text(encoding="utf-8").splitlines())}


def _rows(lines: Iterable[str]) -> Iterable[dict[str, str]]:
    return csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)


def _literal(text: str) -> ConfigLeaf:
    value = ast.literal_eval(text)
    return tuple(value) if isinstance(value, list) else value
