"""Read YAML as OmegaConf does, with the line of every value.

PyYAML's own rules make a string of ``1e-6``; OmegaConf's make a float of it, and both frameworks
read their files through OmegaConf. No tag is executed, and anchors cannot blow up: the size of
what they expand to is known before anything is expanded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from align.core.config_value import ConfigLeaf
from align.core.errors import ConfigError
from align.core.text import Text
from dumps.readers.leaf import Leaf, Path

_MAX_VALUES = 50_000
_MAX_DEPTH = 64
_MAX_CUTS = 8  # places at which an unreadable file is cut before it is given up


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """What could be read of one YAML text.

    Args:
        leaves: in file order, interpolations as written.
        is_list: whether the root is a list; a leaf's path then starts with an index.
        plain: the same values as nested dicts and lists.
        num_unread_lines: at the end of a text that breaks off or breaks YAML's rules.
    """

    leaves: tuple[Leaf, ...]
    is_list: bool
    plain: Any
    num_unread_lines: int = 0
    notes: tuple[Text, ...] = ()


def parse_yaml(text: str, *, where: str) -> YamlDocument:
    """Read a YAML text up to the first line that is none.

    Raises:
        ConfigError: Nothing in it is YAML, the root is a single value, or its anchors expand to
            more than 50,000 values.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    root, num_read, problem = _compose(lines, where)
    notes = [] if problem is None else [_cut(num_read + 1, problem)]
    tree = _Tree(where)
    tree.check_size(root)
    leaves = tuple(tree.leaves(root, lines))
    if problem is not None:
        leaves = leaves[:-1]  # its value may go on in the lines that could not be read
    if not leaves:
        raise _nothing(where, problem)
    return YamlDocument(
        leaves=leaves,
        is_list=isinstance(root, yaml.SequenceNode),
        plain=tree.plain(root),
        num_unread_lines=len(lines) - num_read if problem else 0,
        notes=(*notes, *tree.notes),
    )


def parse_value(text: str) -> list[tuple[Path, ConfigLeaf]]:
    """Read one value as it stands after ``key=``: its leaves, one with the path () for a scalar.

    Text that is no YAML stays text.
    """
    try:
        root = yaml.compose(text, Loader=_loader())
        tree = _Tree("value")
        tree.check_size(root)
        if root is None:
            return [((), None)]
        if not isinstance(root, yaml.MappingNode):
            return [((), tree.value(root))]
        return [(leaf.path, leaf.value) for leaf in tree.leaves(root, [text])]
    except (yaml.YAMLError, ConfigError, RecursionError):
        return [((), text)]


@cache
def _loader() -> type[Any]:
    """Make a loader with libyaml's parser, where installed, and OmegaConf's rules for scalars."""
    from omegaconf._utils import get_yaml_loader  # no public name for these rules

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rules = {"yaml_implicit_resolvers": get_yaml_loader().yaml_implicit_resolvers}
    return type("_OmegaConfRules", (base,), rules)


def _compose(lines: list[str], where: str) -> tuple[yaml.Node, int, str | None]:
    """Parse as many lines as are YAML; also return their number and what stopped it."""
    num_lines, first_problem = len(lines), None
    for _ in range(_MAX_CUTS):
        try:
            root = yaml.compose("\n".join(lines[:num_lines]), Loader=_loader())
        except (yaml.YAMLError, RecursionError) as error:
            first_problem = first_problem or _problem(error)
            num_lines = min(_line_of(error), num_lines - 1)
            if num_lines <= 0:
                break
            continue
        if isinstance(root, yaml.CollectionNode) and root.value:
            return root, num_lines, first_problem
        break
    raise _nothing(where, first_problem)


def _cut(line: int, problem: str) -> Text:
    return Text(
        f"from line {line} on it is no YAML: {problem}",
        f"从第 {line} 行起不是 YAML：{problem}",
    )


def _twice(key: str, first: int, last: int) -> Text:
    return Text(
        f"key {key} stands in lines {first} and {last}: the last one is used, though OmegaConf "
        "refuses such a file",
        f"键 {key} 同时出现在第 {first} 行和第 {last} 行：以后者为准，"
        "但 OmegaConf 会拒绝这样的文件",
    )


def _nothing(where: str, problem: str | None) -> ConfigError:
    return ConfigError(
        where=where,
        problem=f"is no YAML configuration ({problem or 'it holds no keys'})",
        fix="give the YAML file the run was started with",
    )


def _problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return str(error.problem or error.context)
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _line_of(error: Exception) -> int:
    """Return the 0-based line of an error; of an open quote, where it was opened."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return 0
    marks = [error.problem_mark]
    if (error.context or "").startswith("while scanning"):
        marks.append(error.context_mark)
    return min((mark.line for mark in marks if mark is not None), default=0)


@dataclass(slots=True)
class _Tree:
    """Composed nodes, with merge keys applied; aliases are shared nodes."""

    where: str
    notes: list[Text] = field(default_factory=list)
    _items: dict[int, list[tuple[str, yaml.Node, int]]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    _constructor: Any = field(default_factory=lambda: _loader()(""))

    def check_size(self, root: yaml.Node | None) -> None:
        """Raise where the tree is endless, too deep or too large to expand."""
        if root is not None and self._size(root, 0, set()) > _MAX_VALUES:
            raise self._error(f"expands to more than {_MAX_VALUES:,} values through its anchors")

    def leaves(self, node: yaml.Node, lines: list[str]) -> Iterator[Leaf]:
        """Yield the leaves in file order; a list at the root gives its elements."""
        if isinstance(node, yaml.SequenceNode):
            yield from self._elements(node, (), lines)
        else:
            yield from self._leaves(node, (), node.start_mark.line + 1, lines)

    def value(self, node: yaml.Node) -> ConfigLeaf:
        """Return a scalar, or the nested tuples of a list; a mapping inside becomes its text."""
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self.value(child) for child in node.value)
        return () if not node.value else str(self.plain(node))

    def plain(self, node: yaml.Node) -> Any:
        """Return nested dicts, lists and scalars."""
        if isinstance(node, yaml.MappingNode):
            return {key: self.plain(child) for key, child, _ in self._children(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(child) for child in node.value]
        return self._scalar(node)

    def _leaves(self, node: yaml.Node, path: Path, line: int, lines: list[str]) -> Iterator[Leaf]:
        if isinstance(node, yaml.MappingNode) and node.value:
            for key, child, key_line in self._children(node):
                yield from self._leaves(child, (*path, key), key_line, lines)
        elif isinstance(node, yaml.SequenceNode) and _has_mapping(node):
            yield from self._elements(node, path, lines)
        else:
            text = lines[line - 1] if line <= len(lines) else ""
            yield Leaf(path, self.value(node), line, text)

    def _elements(self, node: yaml.SequenceNode, path: Path, lines: list[str]) -> Iterator[Leaf]:
        for index, child in enumerate(node.value):
            yield from self._leaves(child, (*path, index), child.start_mark.line + 1, lines)

    def _children(self, node: yaml.MappingNode) -> list[tuple[str, yaml.Node, int]]:
        if id(node) not in self._items:
            self._items[id(node)] = self._read_children(node)
        return self._items[id(node)]

    def _read_children(self, node: yaml.MappingNode) -> list[tuple[str, yaml.Node, int]]:
        merged: dict[str, tuple[yaml.Node, int]] = {}
        own: dict[str, tuple[yaml.Node, int]] = {}
        for key_node, child in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = self._merged(child) | merged
                continue
            key = str(self.value(key_node))
            if key in own:
                self.notes.append(_twice(key, own[key][1], line))
            own[key] = child, line
        return [(key, child, line) for key, (child, line) in (merged | own).items()]

    def _merged(self, node: yaml.Node) -> dict[str, tuple[yaml.Node, int]]:
        if isinstance(node, yaml.MappingNode):
            return {key: (child, line) for key, child, line in self._children(node)}
        merged: dict[str, tuple[yaml.Node, int]] = {}
        for child in node.value if isinstance(node, yaml.SequenceNode) else ():
            if isinstance(child, yaml.MappingNode):
                merged = self._merged(child) | merged
        return merged

    def _size(self, node: yaml.Node, depth: int, above: set[int]) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        if id(node) in above or depth > _MAX_DEPTH:
            raise self._error("is nested without end" if id(node) in above else "is too deep")
        above.add(id(node))
        parts = [p for pair in node.value for p in (pair if isinstance(pair, tuple) else [pair])]
        self._sizes[id(node)] = 1 + sum(self._size(part, depth + 1, above) for part in parts)
        above.remove(id(node))
        return self._sizes[id(node)]

    def _scalar(self, node: yaml.Node) -> ConfigLeaf:
        try:
            value = self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError):  # a tag that is not run; a number out of range
            return str(node.value)
        return value if isinstance(value, None | bool | int | float | str) else str(value)

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(
            where=self.where, problem=problem, fix="write the values out without anchors"
        )


def _has_mapping(node: yaml.Node) -> bool:
    if isinstance(node, yaml.SequenceNode):
        return any(_has_mapping(child) for child in node.value)
    return isinstance(node, yaml.MappingNode)
