"""What a vLLM engine says of itself when it starts.

``Initializing a V1 LLM engine (v0.11.0) with config: model='…', dtype=torch.bfloat16, …`` holds
what the engine uses, ``non-default args: {…}`` what it was given. The server also names the
sampling defaults it takes from the model's generation_config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from align.core.config_value import ConfigLeaf, ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.leaf import Leaf, config_values, dotted
from dumps.readers.nested_literal import NestedLiteral
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.text import iter_blocks, strip_ansi

FORMAT = "vllm_log"

_ENGINE = re.compile(rb"LLM engine (?:\(v[^)\s]+\) )?with config: (?=\w+=)")
_GIVEN = re.compile(rb"non-default args: (?=\{)")
_SAMPLING = re.compile(rb"Using default (?:chat|completion) sampling params from model: (?=\{)")
_ANY = re.compile(b"|".join(p.pattern for p in (_ENGINE, _GIVEN, _SAMPLING)))
_PAIR = re.compile(r"\s*([A-Za-z_]\w*)=")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WORDS: dict[str, ConfigLeaf] = {"None": None, "True": True, "False": False, "": None}
_OPENERS, _CLOSERS = "([{", ")]}"
_MAX_STARTS = 500  # a restarted engine prints one each


def _sniff(glimpse: Glimpse) -> bool:
    return glimpse.search(_ENGINE) is not None or glimpse.search(_GIVEN) is not None


def read_vllm_log(path: Path, progress: Progress) -> RawConfig:
    """Read what the engines of a log use; of what they were given, only what they do not repeat.

    A key in which two engines of one log differ (a seed by rank) is left out, with a note.

    Raises:
        ConfigError: No engine states anything that can be read.
    """
    used, given, sampling = _statements(path, progress)
    merged, differing = _merged(used)
    extra, also_differing = _merged(given)
    defaults, _ = _merged(sampling)
    left_out = differing | also_differing
    leaves = [
        *merged.values(),
        *(leaf for key, leaf in extra.items() if key not in merged and key not in left_out),
        *defaults.values(),
    ]
    if not leaves:
        raise ConfigError(
            where=str(path),
            problem="holds no engine's configuration that can be read",
            fix="give the script that starts the server",
        )
    values = config_values(leaves, source=str(path), kind=ProvenanceKind.PRINTED)
    notes = (_differ(sorted(left_out)),) if left_out else ()
    return RawConfig(str(path), FORMAT, "vllm", values, notes=notes, unknown=tuple(left_out))


def _differ(keys: list[str]) -> Text:
    shown = ", ".join(keys[:5]) + (" …" if len(keys) > 5 else "")
    return Text(
        f"the engines of one log differ in {len(keys)} keys, which are left out: {shown}",
        f"同一日志中的引擎有 {len(keys)} 个键不同，均未采用：{shown}",
    )


def _statements(
    path: Path, progress: Progress
) -> tuple[list[list[Leaf]], list[list[Leaf]], list[list[Leaf]]]:
    used: list[list[Leaf]] = []
    given: list[list[Leaf]] = []
    sampling: list[list[Leaf]] = []
    for block in iter_blocks(path, progress):
        matches = [m for _, m in zip(range(_MAX_STARTS), _ANY.finditer(block.data), strict=False)]
        numbers = block.numbers_at([m.start() for m in matches])
        for match, number in zip(matches, numbers, strict=True):
            end = block.data.find(b"\n", match.end())
            raw = block.data[match.end() : end if end >= 0 else len(block.data)]
            text = strip_ansi(raw.decode("utf-8", "replace")).rstrip("\r")
            if match.group().startswith(b"LLM"):
                used.append(list(_pairs(text, number, is_whole=end >= 0)))
            elif match.group().startswith(b"non"):
                given.append(list(_dict((), text, number)))
            else:
                sampling.append(list(_dict(("default_sampling",), text, number)))
    return used, given, sampling


def _merged(statements: Iterable[Iterable[Leaf]]) -> tuple[dict[str, Leaf], set[str]]:
    """Return the leaves all statements agree on, by key, and the keys they do not."""
    merged: dict[str, Leaf] = {}
    differing: set[str] = set()
    for leaves in statements:
        for leaf in leaves:
            key = dotted(leaf.path)
            if repr(merged.setdefault(key, leaf).value) != repr(leaf.value):
                differing.add(key)
    return {key: leaf for key, leaf in merged.items() if key not in differing}, differing


def _pairs(text: str, line: int, *, is_whole: bool) -> Iterator[Leaf]:
    """Yield the leaves of ``key=value, key=value``; a comma in brackets or quotes does not part.

    Of a line that was cut, the last value is not taken: its end is missing.
    """
    position = 0
    while (match := _PAIR.match(text, position)) is not None:
        end = _end_of_value(text, match.end())
        if end is None or (end == len(text) and not is_whole):
            return
        yield from _value((match[1],), text[match.end() : end].strip(), line)
        position = end + 1


def _end_of_value(text: str, begin: int) -> int | None:
    """Return where a value ends, None where its bracket or quote never closes."""
    depth, quote, is_escaped = 0, "", False
    for position in range(begin, len(text)):
        letter = text[position]
        if quote:
            is_escaped = letter == "\\" and not is_escaped
            if letter == quote and not is_escaped:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif letter in _OPENERS:
            depth += 1
        elif letter in _CLOSERS:
            depth -= 1
        elif letter == "," and depth == 0:
            return position
    return len(text) if depth <= 0 and not quote else None


def _value(path: tuple[str, ...], text: str, line: int) -> Iterator[Leaf]:
    if text[:1] in ("{", "["):
        yield from _dict(path, text, line)
    elif text[:1] in "'\"" and len(text) > 1:
        yield Leaf(path, text[1:-1], line, text)
    elif text in _WORDS:
        yield Leaf(path, _WORDS[text], line, text)
    elif _NUMBER.fullmatch(text):
        yield Leaf(path, int(text) if text.lstrip("+-").isdigit() else float(text), line, text)
    else:
        yield Leaf(path, text, line, text)


def _dict(path: tuple[str, ...], text: str, line: int) -> Iterator[Leaf]:
    literal = NestedLiteral(by_column=False)
    literal.feed(line, text, is_last=True)
    if path and not literal.leaves:
        yield Leaf(path, text, line, text)
    yield from (Leaf((*path, *leaf.path), leaf.value, line, text) for leaf in literal.leaves)


READER = Reader(FORMAT, ArtifactKind.ENGINE, _sniff, read_vllm_log, priority=10)
