"""Read YAML as OmegaConf does, with the line of every value.

PyYAML's own rules make a string of ``1e-6``; OmegaConf's make a float of it, and both frameworks
read their files through OmegaConf. No tag is executed, and anchors cannot blow up: the size of
what they expand to is known before anything is expanded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from align.core.config_value import ConfigLeaf
from align.core.errors import ConfigError
from dumps.readers.leaf import Leaf, Path, dotted
from dumps.readers.yaml_source import YamlSource, loader

_MAX_VALUES = 50_000
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """What could be read of one YAML text.

    Args:
        leaves: in file order, interpolations as written.
        is_list: whether the root is a list; a leaf's path then starts with an index.
        plain: the same values as nested dicts and lists.
        num_unread_lines: at the end of a text that breaks off.
        unknown: dotted keys of what was left out, because it breaks YAML's rules.
        problems: what breaks them, with its line and how to correct it.
    """

    leaves: tuple[Leaf, ...]
    is_list: bool
    plain: Any
    num_unread_lines: int = 0
    unknown: tuple[str, ...] = ()
    problems: tuple[ConfigError, ...] = ()


def parse_yaml(text: str, *, where: str, numbers: Sequence[int] | None = None) -> YamlDocument:
    """Read a YAML text, leaving out the keys whose lines are none.

    Args:
        text: the whole text.
        where: its file, for messages.
        numbers: the line of the file that each line of ``text`` is, where they are not the same.

    Raises:
        ConfigError: Nothing in it is YAML, the root is a single value, or its anchors expand to
            more than 50,000 values.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    source = YamlSource(where, numbers or range(1, len(lines) + 1), lines)
    root = source.compose()
    tree = _Tree(source)
    tree.check_size(root)
    leaves = tuple(tree.leaves(root, lines))
    if source.num_unread:
        leaves = leaves[:-1]  # its value may go on in the lines that could not be read
    if not leaves:
        raise source.nothing()
    return YamlDocument(
        leaves=leaves,
        is_list=isinstance(root, yaml.SequenceNode),
        plain=tree.plain(root),
        num_unread_lines=source.num_unread,
        unknown=tuple(dict.fromkeys((*source.unknown, *tree.spanning))),
        problems=tuple(source.problems),
    )


def parse_value(text: str) -> list[tuple[Path, ConfigLeaf]]:
    """Read one value as it stands after ``key=``: its leaves, one with the path () for a scalar.

    Text that is no YAML stays text.
    """
    try:
        root = yaml.compose(text, Loader=loader())
        tree = _Tree(YamlSource("value", (1,), [text]))
        tree.check_size(root)
        if root is None:
            return [((), None)]
        if not isinstance(root, yaml.MappingNode):
            return [((), tree.value(root))]
        return [(leaf.path, leaf.value) for leaf in tree.leaves(root, [text])]
    except (yaml.YAMLError, ConfigError, RecursionError):
        return [((), text)]


@dataclass(slots=True)
class _Tree:
    """Composed nodes, with merge keys applied; aliases are shared nodes."""

    source: YamlSource
    spanning: list[str] = field(default_factory=list)  # keys whose value a hole may have cut
    _items: dict[int, list[tuple[str, yaml.Node, int]]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    _constructor: Any = field(default_factory=lambda: loader()(""))

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
        elif not self.source.holes.isdisjoint(range(node.start_mark.line, _last_line(node))):
            self.spanning.append(dotted(path))
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
                self.source.twice(key, own[key][1], line)
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
            where=self.source.where, problem=problem, fix="write the values out without anchors"
        )


def _last_line(node: yaml.Node) -> int:
    """Return the 0-based line a value ends in; that of a block one ends before what follows it."""
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1])
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return int(node.start_mark.line)
    return int(node.end_mark.line)


def _has_mapping(node: yaml.Node) -> bool:
    if isinstance(node, yaml.SequenceNode):
        return any(_has_mapping(child) for child in node.value)
    return isinstance(node, yaml.MappingNode)
