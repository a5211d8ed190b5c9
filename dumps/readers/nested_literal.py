"""Read a nested dict or list that was printed by Python or written as JSON, line by line.

A console log gives such a text in pieces: other output stands between its lines, the end may be
missing, a long string is continued on the next line. So it is not parsed as one document: each
line is offered to `NestedLiteral.feed`, which takes the line whole or leaves its state as it was.
Every value counts only once its delimiter has been read, so that what remains of a cut text is
never mistaken for a value.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from align.core.config_value import ConfigLeaf
from dumps.readers.leaf import Leaf, Path

_MAX_DEPTH = 64

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>[bBuUrR]{0,2}(?:'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"))
    | (?P<number>[-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])
    | (?P<call>[A-Za-z_][\w.]*\((?:[^()'"]|'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")*\))
    | (?P<word>[-+]?[A-Za-z_][\w.]*)
    | (?P<object><[^<>]*>)
    | (?P<mark>[{}\[\](),:])
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_WORDS: dict[str, ConfigLeaf] = {
    "True": True,
    "true": True,
    "False": False,
    "false": False,
    "None": None,
    "null": None,
}
_NOT_FINITE = re.compile(r"[-+]?(?:nan|NaN|inf|Infinity)")
_CLOSERS = {"{": "}", "[": "]", "(": ")"}


@dataclass(slots=True)
class _Open:
    """A dict, list or tuple that has not been closed."""

    mark: str
    path: Path
    line: int  # of the key this container belongs to
    text: str
    column: int | None = None  # where its keys or elements start
    key: str | None = None  # whose value comes next or is pending
    key_line: int = 0
    key_text: str = ""
    expects: str = "item"  # "item", "colon", "value" or "comma"
    pending: ConfigLeaf = None
    has_pending: bool = False
    pending_column: int | None = None  # of a string, which the next line may continue
    items: list[tuple[int, ConfigLeaf]] = field(default_factory=list)  # (line, element) of a list
    num_items: int = 0
    has_mapping: bool = False

    def copy(self) -> _Open:
        twin = _Open(self.mark, self.path, self.line, self.text)
        for name in _Open.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


class NestedLiteral:
    """The leaves read so far of one printed dict or list.

    Args:
        by_column: whether a line must start in the column of its siblings, as everything that
            pprint prints does. This tells other output apart, and finds the way back after a line
            that was lost. False for text whose indentation means nothing.
    """

    def __init__(self, *, by_column: bool) -> None:
        self.leaves: list[Leaf] = []
        self.is_complete = False
        self.num_lost_ends = 0  # containers whose closing bracket never came
        self._by_column = by_column
        self._stack: list[_Open] = []

    def feed(self, line: int, text: str, *, is_last: bool = False) -> bool:
        """Take one line; False, and nothing changed, where it does not belong to the literal.

        Args:
            line: its 1-based number.
            text: the line, its first character in column 0 of the printed text.
            is_last: whether the text ends here, so that a line cut anywhere counts as far as it
                goes.
        """
        attempt = _Attempt([container.copy() for container in self._stack], line, text)
        sizes = [len(container.items) for container in self._stack]
        num_lost = attempt.align() if self._by_column else 0
        taken = num_lost is not None and attempt.run(keeps_part=is_last or self._by_column)
        if not taken:
            for container, size in zip(self._stack, sizes, strict=True):
                del container.items[size:]
            return False
        self.num_lost_ends += num_lost or 0
        self._stack = attempt.stack
        self.leaves += attempt.leaves
        self.is_complete = not self._stack
        return True


class _Attempt:
    """One line applied to a copy of the state."""

    def __init__(self, stack: list[_Open], line: int, text: str) -> None:
        self.stack = stack
        self.leaves: list[Leaf] = []
        self._line = line
        self._text = text
        self._is_begun = bool(stack)

    def align(self) -> int | None:
        """Close what the first token's column shows to be over; None where the column is wrong.

        Returns:
            How many containers were closed without their bracket.
        """
        first = next(_tokens(self._text), None)
        if first is None or not self.stack:
            return 0
        top = self.stack[-1]
        if first.text in ("}", "]", ")"):
            return 0
        if first.column == top.pending_column and first.kind == "string":
            return 0
        if top.column is None:
            return 0
        depth = next((i for i, c in enumerate(self.stack) if c.column == first.column), None)
        if depth is None:
            return None
        lost = self.stack[depth + 1 :]
        del self.stack[depth + 1 :]
        if lost:
            self.stack[-1].num_items += 1
        if lost or top.expects != "item":
            self.stack[-1].has_pending = False  # its end was never seen
            self.stack[-1].pending_column = None
            self.stack[-1].expects = "item"
        return len(lost)

    def run(self, *, keeps_part: bool) -> bool:
        """Take the line's tokens; a part of them, where allowed, up to the last delimiter."""
        num_taken = 0
        complete_at = (0, 0)
        for token in _tokens(self._text):
            if not self._take(token):
                return keeps_part and complete_at[0] > 0
            num_taken += 1
            if token.text in (",", "}", "]", ")"):
                complete_at = (num_taken, len(self.leaves))
            if not self.stack:
                return True
        return num_taken > 0

    def _take(self, token: _Token) -> bool:
        if token.kind == "bad":
            return False
        if not self.stack:
            return self._open(token, (), self._line, self._text) if not self._is_begun else False
        top = self.stack[-1]
        if token.text == _CLOSERS[top.mark]:
            return self._close(top)
        if top.expects == "comma":
            return self._after_value(top, token)
        if top.expects == "colon":
            top.expects = "value"
            return token.text == ":"
        if top.expects == "item" and top.mark == "{":
            return self._key(top, token)
        return self._value(top, token)

    def _key(self, top: _Open, token: _Token) -> bool:
        if token.kind not in ("string", "number"):
            return False
        value = _scalar(token)
        top.key = value if isinstance(value, str) else str(value)
        top.key_line, top.key_text = self._line, self._text
        top.column = token.column if top.column is None else top.column
        top.expects = "colon"
        return True

    def _value(self, top: _Open, token: _Token) -> bool:
        if top.mark != "{":
            top.column = token.column if top.column is None else top.column
            top.key_line, top.key_text = self._line, self._text
        if token.text in _CLOSERS:
            return self._open(token, self._child_path(top), top.key_line, top.key_text)
        if token.kind == "mark":
            return False
        top.pending, top.has_pending, top.expects = _scalar(token), True, "comma"
        top.pending_column = token.column if token.kind == "string" else None
        return True

    def _after_value(self, top: _Open, token: _Token) -> bool:
        if token.text == ",":
            self._commit(top)
            top.expects = "item"
            return True
        if token.kind == "string" and top.pending_column is not None:
            top.pending = f"{top.pending}{_scalar(token)}"  # a long string goes on
            return True
        return False

    def _open(self, token: _Token, path: Path, line: int, text: str) -> bool:
        if token.text not in _CLOSERS or len(self.stack) >= _MAX_DEPTH:
            return False
        if token.text == "{":
            for container in reversed(self.stack):
                if container.mark == "{":
                    break
                container.has_mapping = True
        self.stack.append(_Open(token.text, path, line, text))
        return True

    def _close(self, top: _Open) -> bool:
        if top.expects in ("colon", "value"):
            return False
        self._commit(top)
        self.stack.pop()
        value = _closed_value(top)
        if not self.stack:
            if value is not None:
                self.leaves.append(Leaf(top.path, value, top.line, top.text))
            return True
        parent = self.stack[-1]
        parent.expects, parent.pending_column = "comma", None
        parent.has_pending = True
        if value is None:
            self._emit_items(top)
            parent.has_pending = False
            parent.num_items += 1
        elif parent.mark != "{" and top.mark == "{":
            self.leaves.append(Leaf(top.path, value, top.line, top.text))  # [{}]
            parent.has_pending = False
            parent.num_items += 1
        else:
            parent.pending = value
        return True

    def _commit(self, top: _Open) -> None:
        """Count the pending value of ``top``: its delimiter has been read."""
        if not top.has_pending:
            return
        if top.mark == "{":
            self.leaves.append(Leaf(self._child_path(top), top.pending, top.key_line, top.key_text))
        else:
            top.items.append((top.num_items, top.pending))
        top.num_items += 1
        top.has_pending, top.pending, top.pending_column = False, None, None

    def _emit_items(self, top: _Open) -> None:
        """Make the scalars beside the mappings of a list leaves of their own."""
        self.leaves += [
            Leaf((*top.path, index), value, top.line, top.text) for index, value in top.items
        ]

    def _child_path(self, top: _Open) -> Path:
        return (*top.path, top.num_items if top.mark != "{" else str(top.key))


def _closed_value(closed: _Open) -> ConfigLeaf:
    """Return the leaf a container is, None where its content is leaves already."""
    if closed.mark == "{":
        return () if closed.num_items == 0 else None
    return None if closed.has_mapping else tuple(value for _, value in closed.items)


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while (match := _TOKEN.match(text, position)) is not None and match.lastgroup is not None:
        if match.lastgroup == "end":
            return
        kind = match.lastgroup
        yield _Token(kind, match[kind], match.start(kind))
        position = match.end()
    yield _Token("bad", text[position:], position)


def _scalar(token: _Token) -> ConfigLeaf:
    if token.kind == "string":
        return _string(token.text)
    if token.kind == "number":
        return _number(token.text)
    if token.kind == "word":
        if _NOT_FINITE.fullmatch(token.text):
            return float(token.text)
        return _WORDS.get(token.text, token.text)
    return token.text


def _number(text: str) -> ConfigLeaf:
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:  # "1.0" is no int; over 4,300 digits nothing is
            continue
    return text


def _string(text: str) -> str:
    if text.startswith('"'):
        try:
            return str(json.loads(text, strict=False))
        except ValueError:  # Python's escapes, such as \x1b
            pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a regular expression
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, str) else str(value)
