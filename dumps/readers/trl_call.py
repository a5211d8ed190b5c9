"""A call of GRPOConfig, PPOConfig or DPOConfig in Python: its keyword literals, never evaluated."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from align.core.config_value import ConfigLeaf, ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.config_text import MAX_BYTES, read_config_text
from dumps.readers.leaf import Leaf, config_values
from dumps.readers.leaf import Path as LeafPath
from dumps.readers.reader import Glimpse, Progress, Reader

FORMAT = "trl_script"

_CONFIGS = ("GRPOConfig", "PPOConfig", "DPOConfig")
_TRAINERS = tuple(name.replace("Config", "Trainer") for name in _CONFIGS)
_IMPORT = re.compile(rb"(?m)^\s*(?:from trl\b|import trl\b)")
_CALL = re.compile(rb"\b(?:GRPO|PPO|DPO)Config\(")


class _NotLiteral:
    """Marks an expression whose value only running it would tell."""


_NOT_LITERAL = _NotLiteral()


def _sniff(glimpse: Glimpse) -> bool:
    fits = glimpse.size_bytes <= MAX_BYTES and _CALL.search(glimpse.head)
    return bool(fits and _IMPORT.search(glimpse.head))


def call_leaves(text: str, line: int) -> tuple[list[Leaf], bool]:
    """Read a call on one line, and whether it is whole; a cut one is read up to its last comma."""
    for end in _ends(text):
        tree = _parsed(f"{text[:end]})" if text[end - 1 : end] != ")" else text[:end])
        call = next((c for c in _calls(tree, _CONFIGS)), None) if tree else None
        if call is not None:
            leaves, _ = _keywords(call, [text], first=line)
            return leaves, text[end - 1 : end] == ")"
    return [], False


def read_trl_script(path: Path, progress: Progress) -> RawConfig:
    """Read the call with the most keywords in a script; its other values are named as unknown.

    Raises:
        ConfigError: The file is no Python, or holds no such call with a literal in it.
    """
    text = read_config_text(path, progress)
    tree = _parsed(text)
    calls = [] if tree is None else list(_calls(tree, _CONFIGS))
    call = max(calls, key=lambda call: len(call.keywords), default=None)
    lines = text.splitlines()
    leaves, unknown = ([], []) if call is None else _keywords(call, lines, first=1)
    if call is None or not leaves:
        raise ConfigError(
            where=str(path),
            problem="is no Python script with a GRPOConfig(key=value) that can be read",
            fix="give the log that prints the configuration, or the YAML file",
        )
    leaves.insert(0, Leaf(("config_class",), _name(call), call.lineno, lines[call.lineno - 1]))
    leaves += _model(tree, lines)
    values = config_values(leaves, source=str(path), kind=ProvenanceKind.FILE)
    notes = (_not_literal(unknown),) if unknown else ()
    return RawConfig(str(path), FORMAT, "trl", values, notes=notes, unknown=tuple(unknown))


def _not_literal(keys: list[str]) -> Text:
    shown = ", ".join(keys)
    return Text(
        f"set to what only running the script tells: {shown}", f"取值须运行脚本才知道：{shown}"
    )


def _parsed(text: str) -> ast.AST | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string of the script
            return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _ends(text: str) -> Iterator[int]:
    """Yield places where the call may end: its last brackets, then its commas from the right."""
    yield from (m.end() for m in list(re.finditer(r"\)", text))[::-1][:20])
    yield from (m.start() for m in list(re.finditer(r",", text))[::-1][:200])


def _calls(tree: ast.AST, names: tuple[str, ...]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node) in names:
            yield node


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _keywords(call: ast.Call, lines: list[str], *, first: int) -> tuple[list[Leaf], list[str]]:
    leaves: list[Leaf] = []
    unknown: list[str] = []
    for keyword in call.keywords:
        if keyword.arg is None:  # **kwargs
            continue
        found = list(_leaves((keyword.arg,), keyword.value))
        number = keyword.value.lineno
        shown = lines[number - 1] if number <= len(lines) else ""
        for path, value in found:
            if isinstance(value, _NotLiteral):
                unknown.append(".".join(str(part) for part in path))
            else:
                leaves.append(Leaf(path, value, first + number - 1, shown))
    return leaves, unknown


def _leaves(path: LeafPath, node: ast.expr) -> Iterator[tuple[LeafPath, ConfigLeaf | _NotLiteral]]:
    if isinstance(node, ast.Dict) and node.keys:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield from _leaves((*path, str(key.value)), value)
        return
    yield path, _literal(node)


def _literal(node: ast.expr) -> ConfigLeaf | _NotLiteral:
    if isinstance(node, ast.Attribute) and _root(node) == "torch":
        return f"torch.{node.attr}"
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _NOT_LITERAL
    return _plain(value)


def _root(node: ast.Attribute) -> str:
    return node.value.id if isinstance(node.value, ast.Name) else ""


def _plain(value: object) -> ConfigLeaf | _NotLiteral:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        plain = tuple(item for item in items if not isinstance(item, _NotLiteral))
        return plain if len(plain) == len(items) else _NOT_LITERAL
    return () if value == {} else _NOT_LITERAL


def _model(tree: ast.AST | None, lines: list[str]) -> list[Leaf]:
    """Return the model that ``GRPOTrainer(model="…")`` names."""
    for call in _calls(tree, _TRAINERS) if tree else ():
        for keyword in call.keywords:
            value = _literal(keyword.value) if keyword.arg == "model" else None
            if isinstance(value, str):
                number = keyword.value.lineno
                return [Leaf(("model_name_or_path",), value, number, lines[number - 1])]
    return []


READER = Reader(FORMAT, ArtifactKind.CONFIG, _sniff, read_trl_script, priority=6)
