"""Read YAML as OmegaConf does, with the line of every value.

PyYAML's own rules make a string of ``1e-6``; OmegaConf's make a float of it, and both frameworks
read their files through OmegaConf. No tag is executed, and anchors cannot blow up: the size of
what they expand to is known before anything is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from align.core.config_value import ConfigLeaf
from align.core.errors import ConfigError
from dumps.readers.leaf import Leaf, Path, dotted

_MAX_VALUES = 50_000
_MAX_DEPTH = 64
_MAX_HOLES = 8  # places left out of an unreadable file before it is given up
_KEY = re.compile(r"""[\t ]*["']?(?P<key>[\w.@/-]+)["']?[\t ]*:(?P<value>.*)""")
_NUM_SHOWN = 3
_FIX_OF = (
    ("while parsing a flow", "close the bracket that is opened there"),
    ("while scanning a quoted", "close the quote that is opened there"),
)


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
    source = _Source(where, numbers or range(1, len(lines) + 1), lines)
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
        root = yaml.compose(text, Loader=_loader())
        tree = _Tree(_Source("value", (1,), [text]))
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


@dataclass(slots=True)
class _Source:
    """The lines of a text, those that are no YAML blanked one key after another."""

    where: str
    numbers: Sequence[int]
    lines: Sequence[str]
    num_unread: int = 0
    holes: set[int] = field(default_factory=set)  # 0-based
    unknown: list[str] = field(default_factory=list)
    problems: list[ConfigError] = field(default_factory=list)

    def compose(self) -> yaml.Node:
        """Parse what can be parsed.

        Raises:
            ConfigError: Nothing can.
        """
        kept = list(self.lines)
        for _ in range(_MAX_HOLES + 1):
            try:
                root = yaml.compose("\n".join(kept), Loader=_loader())
            except (yaml.YAMLError, RecursionError) as error:
                kept = self._without(kept, error)
                continue
            if isinstance(root, yaml.CollectionNode) and root.value:
                return root
            break
        raise self.nothing()

    def nothing(self) -> ConfigError:
        """Say that no key can be read."""
        first = next(iter(self.problems), None)
        return ConfigError(
            where=first.where if first else f"{self.where}:1",
            problem=first.problem if first else "is no YAML configuration: it holds no keys",
            fix=first.fix if first else "give the YAML file the run was started with",
        )

    def twice(self, key: str, first: int, last: int) -> None:
        """Note a key that stands in two 1-based lines."""
        number, before = self.numbers[last - 1], self.numbers[first - 1]
        self.problems.append(
            ConfigError(
                where=f"{self.where}:{number}",
                key=key,
                problem=f"stands in lines {before} and {number}, which OmegaConf refuses",
                fix="remove one of them; the last one is compared",
            )
        )

    def _without(self, kept: list[str], error: Exception) -> list[str]:
        """Blank the key an error stands in, or everything from there on."""
        if _is_tab(error, kept):
            return self._without_tabs(kept)
        start = min(_line_of(error, kept), len(kept) - 1)
        while start > 0 and not kept[start].strip():
            start -= 1
        indent, end = _indent(kept[start]), start + 1
        while end < len(kept) and (not kept[end].strip() or _indent(kept[end]) > indent):
            end += 1
        key = _dotted_key(kept, start)
        problem, fix = _problem(error), _fix(error)
        if end == len(kept) or key is None:  # the text breaks off, or no key is known to be lost
            self.num_unread = len(self.lines) - start
            self._report(start, f"is no YAML from here on ({problem})", fix)
            return kept[:start]
        self.holes |= set(range(start, end))
        self.unknown.append(key)
        self._report(start, f"is no YAML ({problem}): {key} is left out", fix)
        return [*kept[:start], *[""] * (end - start), *kept[end:]]

    def _without_tabs(self, kept: list[str]) -> list[str]:
        """Blank every line that is indented with a tab, in one go."""
        tabs = {i for i, line in enumerate(kept) if "\t" in _margin(line)}
        keys = [key for i in sorted(tabs) if (key := _dotted_key(kept, i)) is not None]
        self.holes |= tabs
        self.unknown += keys
        shown = ", ".join(keys[:_NUM_SHOWN]) + (" …" if len(keys) > _NUM_SHOWN else "")
        said = f"is no YAML (it is indented with a tab): {shown or 'it'}"
        fix = "indent it with spaces instead of a tab"
        self._report(min(tabs), f"{said} {'are' if len(keys) > 1 else 'is'} left out", fix)
        return ["" if i in tabs else line for i, line in enumerate(kept)]

    def _report(self, line: int, problem: str, fix: str) -> None:
        where = f"{self.where}:{self.numbers[line]}"
        self.problems.append(ConfigError(where=where, problem=problem, fix=fix))


def _dotted_key(lines: Sequence[str], at: int) -> str | None:
    """Spell the key in a line by the indentation above it; None where it has none."""
    found = _KEY.match(lines[at])
    if found is None:
        return None
    parts, indent = [found["key"]], _indent(lines[at])
    for line in reversed(lines[:at]):
        if not line.strip() or line.lstrip().startswith("#") or _indent(line) >= indent:
            continue
        above = _KEY.match(line)
        if above is None:
            return None  # an element of a list
        if not above["value"].partition("#")[0].strip():
            parts.append(above["key"])
            indent = _indent(line)
    return ".".join(reversed(parts))


def _indent(line: str) -> int:
    return len(_margin(line.expandtabs()))


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _is_tab(error: Exception, lines: Sequence[str]) -> bool:
    """Tell whether a parser stopped at a line that is indented with a tab."""
    mark = getattr(error, "problem_mark", None)
    return mark is not None and mark.line < len(lines) and "\t" in _margin(lines[mark.line])


def _problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return str(error.problem or error.context)
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _fix(error: Exception) -> str:
    said = f"{getattr(error, 'context', '')} {getattr(error, 'problem', '')}"
    found = (fix for sign, fix in _FIX_OF if sign in said)
    return next(found, "correct that line, or copy the file again")


def _line_of(error: Exception, lines: Sequence[str]) -> int:
    """Return the 0-based line of an error; of an open quote or bracket, where it was opened."""
    if isinstance(error, yaml.reader.ReaderError):
        unprintable = yaml.reader.Reader.NON_PRINTABLE
        return next((i for i, line in enumerate(lines) if unprintable.search(line)), 0)
    if not isinstance(error, yaml.MarkedYAMLError):
        return 0
    marks = [error.problem_mark]
    opened = ("while scanning", "while parsing a flow")
    if (error.context or "").startswith(opened):
        marks.append(error.context_mark)
    return min((mark.line for mark in marks if mark is not None), default=0)


@dataclass(slots=True)
class _Tree:
    """Composed nodes, with merge keys applied; aliases are shared nodes."""

    source: _Source
    spanning: list[str] = field(default_factory=list)  # keys whose value a hole may have cut
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
