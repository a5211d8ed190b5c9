"""Resolve ``${…}`` in configuration values through OmegaConf, each value once.

OmegaConf resolves a reference anew each time it is met, so a short file can ask for 2^30 steps.
Here a value is resolved only when all it refers to is resolved, and is then stored. What depends on
the machine it is read on (``oc.env``) or on a running Hydra is never resolved: it stays text.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from align.core.config_value import ConfigLeaf
from align.core.errors import ConfigError
from align.core.text import Text
from dumps.readers.config_text import TOO_LONG
from dumps.readers.leaf import Leaf, Path, dotted

_REFERENCE = re.compile(r"\$\{(.*)", re.DOTALL)
_OPEN = re.compile(r"\$\{")
_NAME = re.compile(r"[\w.\[\]-]+")
_FOREIGN = re.compile(r"\$\{\s*(?:oc\.env|env|hydra|now)\s*:")
_DOLLAR = "\ue000"  # of Unicode's private use, so that no text holds it
_MAX_TEXT = 65_536
_MAX_LEAVES = 2_000  # that interpolations may add


def resolve_leaves(
    leaves: Sequence[Leaf], plain: Any, *, is_cut: bool = False
) -> tuple[list[Leaf], tuple[Text, ...]]:
    """Return the leaves with their interpolations resolved, and notes on those that are not.

    Args:
        leaves: as `dumps.readers.yaml_leaves.parse_yaml` gives them.
        plain: the same values as nested dicts and lists.
        is_cut: whether values are missing, to which ``${oc.select:key,default}`` may refer: then
            nothing is resolved.
    """
    pending = [leaf for leaf in leaves if _is_open(leaf.value)]
    if not pending:
        return list(leaves), ()
    resolved = {} if is_cut else _resolve_in_rounds(plain, pending)
    result = [new for leaf in leaves for new in _replaced(leaf, resolved)]
    unresolved = [leaf for leaf in result if _is_open(leaf.value)]
    if not unresolved:
        return result, ()
    shown = ", ".join(f"{dotted(leaf.path)} (line {leaf.line})" for leaf in unresolved[:5])
    more = ", …" if len(unresolved) > 5 else ""
    note = Text(
        f"{len(unresolved)} interpolations stay as text: {shown}{more}",
        f"{len(unresolved)} 处插值未解析，保留原文：{shown}{more}",
    )
    return result, (note,)


def value_problems(leaves: Sequence[Leaf], where: str) -> tuple[ConfigError, ...]:
    """Name every circle of values that refer to each other, once, and values left out as too long.

    Args:
        leaves: as `dumps.readers.yaml_leaves.parse_yaml` gives them.
        where: their file.
    """
    pending = {dotted(leaf.path): leaf for leaf in leaves if _is_open(leaf.value)}
    names = {key: _names(leaf) for key, leaf in pending.items()}
    bound = set(pending)
    while ends := {key for key in bound if not names[key] & bound}:
        bound -= ends  # what refers to nothing open is in no circle
    targets = {key: sorted(names[key] & bound) for key in pending if key in bound}
    found = [_too_long(leaf, where) for leaf in pending.values() if TOO_LONG in str(leaf.value)]
    done: set[str] = set()
    for start in targets:
        trail: list[str] = []
        key = start
        while key not in done and key not in trail:
            trail.append(key)
            key = targets[key][0]
        if key in trail:
            circle = trail[trail.index(key) :]
            found.append(_circle(circle, pending[circle[0]].line, where))
        done |= set(trail)
    return tuple(found)


def _too_long(leaf: Leaf, where: str) -> ConfigError:
    size = int(str(leaf.value).partition(TOO_LONG)[2].partition("}")[0])
    return ConfigError(
        where=f"{where}:{leaf.line}",
        key=dotted(leaf.path),
        problem=f"stands in a line of {size:,} bytes, and its value is left out",
        fix="remove it from the configuration; the rest of the file is compared",
    )


def _circle(keys: Sequence[str], line: int, where: str) -> ConfigError:
    return ConfigError(
        where=f"{where}:{line}",
        key=keys[0],
        problem=f"refers to itself: {' -> '.join([*keys, keys[0]])}",
        fix=f"write the value of {keys[-1]} out; these keys are left out of the comparison",
    )


def _is_open(value: ConfigLeaf) -> bool:
    if isinstance(value, tuple):
        return any(_is_open(element) for element in value)
    return isinstance(value, str) and "${" in value


def _names(leaf: Leaf) -> frozenset[str]:
    """Collect every key a value may refer to; words that are no keys do no harm."""
    inside = " ".join(_REFERENCE.findall(str(leaf.value)))
    names = set()
    for name in _NAME.findall(inside):
        num_dots = len(name) - len(name.lstrip("."))
        parent = dotted(leaf.path[: len(leaf.path) - num_dots]) if num_dots else ""
        names.add(f"{parent}.{name[num_dots:]}".strip("."))
    return frozenset(names - {""})


def _resolve_in_rounds(plain: Any, pending: Sequence[Leaf]) -> dict[Path, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # oc.deprecated warns the run's user, not ours
        return _resolve_all(_create(plain), pending)


def _resolve_all(config: Any | None, pending: Sequence[Leaf]) -> dict[Path, Any]:
    resolved: dict[Path, Any] = {}
    num_leaves = 0
    waiting = [(leaf, _names(leaf)) for leaf in pending]
    while config is not None and waiting:
        blocked = {key for leaf, _ in waiting for key in _containers_of(leaf.path)}
        ready = [leaf for leaf, names in waiting if not names & blocked]
        if not ready:
            break  # a circle
        waiting = [(leaf, names) for leaf, names in waiting if names & blocked]
        for leaf in ready:
            for value in _resolve(config, leaf):
                resolved[leaf.path] = value
                num_leaves += _count(value)
            if num_leaves > _MAX_LEAVES:
                return resolved
    return resolved


def _containers_of(path: Path) -> Iterator[str]:
    """Yield the key of a value and of everything it lies in."""
    for length in range(1, len(path) + 1):
        yield dotted(path[:length])


def _create(plain: Any) -> Any | None:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for data in (_hidden(plain, _FOREIGN), _hidden(plain, _OPEN)):
        try:
            return OmegaConf.create(data)
        except (OmegaConfBaseException, ValueError, RecursionError):
            continue  # a "${" without its end: then nothing is resolved
    return None


def _hidden(plain: Any, pattern: re.Pattern[str]) -> Any:
    """Hide from OmegaConf the dollar signs of strings that ``pattern`` finds something in."""
    if isinstance(plain, dict):
        return {key: _hidden(value, pattern) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_hidden(value, pattern) for value in plain]
    if isinstance(plain, str) and pattern.search(plain):
        return plain.replace("$", _DOLLAR)
    return plain


def _shown(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _shown(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_shown(value) for value in plain]
    return plain.replace(_DOLLAR, "$") if isinstance(plain, str) else plain


def _resolve(config: Any, leaf: Leaf) -> Iterator[Any]:
    """Resolve one value and store it; nothing, and its text stored, where that is impossible."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    parent = config
    try:
        for part in leaf.path[:-1]:
            parent = parent[part]
        value = parent[leaf.path[-1]]
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        value = _shown(value)
    except (OmegaConfBaseException, ValueError, TypeError, KeyError, RecursionError):
        parent[leaf.path[-1]] = _hidden(_plain(leaf.value), _OPEN)
        return
    if isinstance(value, str) and ("${" in value or len(value) > _MAX_TEXT):
        parent[leaf.path[-1]] = _hidden(leaf.value, _OPEN)
        return
    parent[leaf.path[-1]] = _hidden(value, _OPEN)
    yield value


def _plain(value: ConfigLeaf) -> Any:
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(_count(child) for child in value.values())
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


def _replaced(leaf: Leaf, resolved: dict[Path, Any]) -> Iterator[Leaf]:
    if leaf.path not in resolved:
        yield leaf
        return
    for path, value in _flat(leaf.path, resolved[leaf.path]):
        yield Leaf(path, value, leaf.line, leaf.text)


def _flat(path: Path, value: Any) -> Iterator[tuple[Path, ConfigLeaf]]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _flat((*path, str(key)), child)
    elif _has_mapping(value):
        for index, child in enumerate(value):
            yield from _flat((*path, index), child)
    else:
        yield path, _leaf(value)


def _has_mapping(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, dict) or _has_mapping(v) for v in value)


def _leaf(value: Any) -> ConfigLeaf:
    if isinstance(value, list | dict):
        return tuple(map(_leaf, value))
    return value if isinstance(value, None | bool | int | float | str) else str(value)
