"""One form for values that mean the same, whatever their spelling."""

from __future__ import annotations

import math
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
    "double": "float64",
    "float64": "float64",
}
_WORDS = {"true": True, "false": False}
_FLAGS = {**_WORDS, "1": True, "0": False, "1.0": True, "0.0": False}
_NONE = ("none", "null", "~")
_CACHED = re.compile(r"models--(?:.+?--)?(.+)")  # a folder of the Hugging Face cache
_FOLDERS = re.compile(r"(?:/|~/|\w+://)\S+$")  # an absolute path: folders differ by machine
_SOME_FOLDER = "/…/"
_ROUNDING = 1e-12  # relative; a product such as 0.1 × 1e-6 misses 1e-7 by one bit of float64


def canonical(value: ConfigLeaf, kind: ValueKind) -> ConfigLeaf:
    """Return ``value`` as the schema states it: numbers as numbers, flags as flags.

    What is not of the field's kind is returned as it is, so that it is shown and compared as
    text.
    """
    if kind is ValueKind.SET:
        return _members(value)
    if value is None or (isinstance(value, str) and value.strip().lower() in _NONE):
        return None if kind is not ValueKind.NUMBER or value is None else "none"
    if kind is ValueKind.NUMBER:
        return _plain_number(value)
    if kind is ValueKind.FLAG:
        return _FLAGS.get(str(value).strip().lower(), value)
    if kind is ValueKind.DTYPE:
        word = str(value).strip().lower().removeprefix("torch.")
        return _DTYPES.get(word, value)
    if kind is ValueKind.NAME and isinstance(value, str | bool):
        return str(value).strip().lower()
    if kind is ValueKind.ANY and isinstance(value, tuple):
        return tuple(canonical(item, kind) for item in value)
    if kind is ValueKind.ANY and isinstance(value, str):
        return _WORDS.get(value.strip().lower(), _plain_number(value)) if value.strip() else value
    return value


def equal(reference: ConfigLeaf, candidate: ConfigLeaf, kind: ValueKind) -> bool:
    """Tell whether two canonical values mean the same."""
    return _alike(_key(reference, kind), _key(candidate, kind))


def _members(value: ConfigLeaf) -> ConfigLeaf:
    """Return the members of a set in a fixed order; one alone counts as a set of one."""
    if isinstance(value, str):
        inner = value.strip().removeprefix("[").removesuffix("]")
        value = tuple(part for part in re.split(r"[,\s]+", inner) if part)
    items = value if isinstance(value, tuple) else (value,)
    plain = [canonical(item, ValueKind.ANY) for item in items]
    members = {repr(_key(item, ValueKind.ANY)): item for item in plain if item is not None}
    return tuple(sorted(members.values(), key=_order)) or None


def _order(item: ConfigLeaf) -> tuple[bool, float, str]:
    value = number(item)
    return value is None, value or 0.0, str(item)


def _plain_number(value: ConfigLeaf) -> ConfigLeaf:
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    parsed = number(value)
    if parsed is None:
        return value
    is_integer = parsed.is_integer() and re.fullmatch(r"\s*[-+]?\d+\s*", value)
    return int(value) if is_integer else parsed


def _key(value: ConfigLeaf, kind: ValueKind) -> ConfigLeaf:
    if kind is ValueKind.PATH and isinstance(value, tuple) and len(value) == 1:
        return _key(value[0], kind)
    if isinstance(value, tuple):
        return tuple(_key(item, kind) for item in value) or None  # nothing is set either way
    if kind is ValueKind.ANY and isinstance(value, str) and _FOLDERS.match(value):
        return f"{_SOME_FOLDER}{_last_part(value, letters_only=False)}"
    if kind in (ValueKind.MODEL_NAME, ValueKind.PATH) and isinstance(value, str):
        return _last_part(value, letters_only=kind is ValueKind.MODEL_NAME)
    return value


def _alike(reference: ConfigLeaf, candidate: ConfigLeaf) -> bool:
    if isinstance(reference, tuple) and isinstance(candidate, tuple):
        pairs = zip(reference, candidate, strict=False)
        return len(reference) == len(candidate) and all(_alike(a, b) for a, b in pairs)
    if isinstance(reference, int | float) and isinstance(candidate, int | float):
        if isinstance(reference, int) and isinstance(candidate, int):
            return reference == candidate
        both_nan = reference != reference and candidate != candidate
        return both_nan or _near(reference, candidate)
    return reference == candidate


def _near(reference: float, candidate: float) -> bool:
    try:
        return math.isclose(reference, candidate, rel_tol=_ROUNDING)
    except OverflowError:  # an integer beyond float64
        return False


def _last_part(value: str, *, letters_only: bool) -> str:
    parts = PurePosixPath(value.strip().rstrip("/")).parts
    cached = (_CACHED.fullmatch(part) for part in parts)
    name = next((found[1] for found in cached if found), parts[-1] if parts else "")
    return re.sub(r"[\W_]+", "", name.lower()) if letters_only else name
