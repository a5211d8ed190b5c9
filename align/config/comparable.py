"""One form for values that mean the same, whatever their spelling."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from align.config.schema import ValueKind
from align.core.config_value import ConfigLeaf
from align.frameworks.config_table import number

_DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "float16": "float16",
    "fp32": "float32",
    "float": "float32",
    "float32": "float32",
    "fp64": "float64",
    "float64": "float64",
}
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
_NONE = ("none", "null", "~")


def canonical(value: ConfigLeaf, kind: ValueKind) -> ConfigLeaf:
    """Return ``value`` as the schema states it: numbers as numbers, flags as flags.

    What is not of the field's kind is returned as it is, so that it is shown and compared as
    text.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() in _NONE):
        return None if kind is not ValueKind.NUMBER or value is None else "none"
    if kind is ValueKind.NUMBER:
        return _plain_number(value)
    if kind is ValueKind.FLAG:
        return _FLAGS.get(str(value).strip().lower(), value)
    if kind is ValueKind.DTYPE:
        word = str(value).strip().lower().removeprefix("torch.")
        return _DTYPES.get(word, value)
    if kind is ValueKind.NAME and isinstance(value, str):
        return value.strip().lower()
    if kind is ValueKind.ANY and isinstance(value, tuple):
        return tuple(canonical(item, kind) for item in value)
    if kind is ValueKind.ANY and isinstance(value, str):
        return _FLAGS.get(value.lower(), _plain_number(value)) if value.strip() else value
    return value


def equal(reference: ConfigLeaf, candidate: ConfigLeaf, kind: ValueKind) -> bool:
    """Tell whether two canonical values mean the same."""
    return _key(reference, kind) == _key(candidate, kind)


def _plain_number(value: ConfigLeaf) -> ConfigLeaf:
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    parsed = number(value)
    if parsed is None:
        return value
    return int(parsed) if parsed.is_integer() and re.fullmatch(r"[-+]?\d+", value) else parsed


def _key(value: ConfigLeaf, kind: ValueKind) -> object:
    if kind in (ValueKind.MODEL_NAME, ValueKind.PATH):
        return _last_part(value, letters_only=kind is ValueKind.MODEL_NAME)
    if isinstance(value, tuple):
        return tuple(_key(item, kind) for item in value) or None  # nothing is set either way
    if isinstance(value, bool):
        return value
    parsed = value if isinstance(value, int | float) else None
    return float(parsed) if parsed is not None else value


def _last_part(value: ConfigLeaf, *, letters_only: bool) -> object:
    if isinstance(value, tuple):
        return tuple(_last_part(item, letters_only=letters_only) for item in value)
    if not isinstance(value, str):
        return value
    name = PurePosixPath(value.rstrip("/")).name
    return re.sub(r"[\W_]+", "", name.lower()) if letters_only else name
