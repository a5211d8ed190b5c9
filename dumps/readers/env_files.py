"""Environment variables of a run: its shell script, Ray's runtime_env.yaml, a dump of ``env``.

Only what surely reaches the run is taken: not what a script sets in a branch, nor what only the
shell can compute. Of two assignments in a script the last one counts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from align.core.environment import EnvironmentFact, EnvironmentFacts
from align.core.finding import Evidence, Side
from align.core.run import ArtifactKind
from dumps.readers.config_text import MAX_BYTES, read_config_text, top_keys, yaml_head
from dumps.readers.env_names import FAMILIES, NAMES, is_fact
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.text import identify
from dumps.readers.yaml_leaves import parse_yaml

_KNOWN = "|".join(sorted((*NAMES, *(rf"{family}\w+" for family in FAMILIES)), key=len))
_ASSIGNS = re.compile(rf"(?m)^[^#\n]*?\b(?:{_KNOWN})=".encode())
_SHELL = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:#!.*sh\b|(?:#.*\n\s*)*(?:set -|export |[A-Za-z_]\w*=))"
)
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_DUMP_LINE = re.compile(rb"(?:declare -x )?[A-Za-z_][\w.%()]*=.*")
_OPENS = re.compile(r"\s*(?:if|case|for|while|until|select)\b|.*\)\s*\{\s*$|\s*function\b.*\{")
_CLOSES = re.compile(r"\s*(?:fi|esac|done|\})(?:\s|;|$)")
_ONE_LINE = re.compile(r"\s*(?:if|for|while|case)\b.*(?:\bfi|\bdone|\besac)\s*;?\s*$")
_ITSELF = re.compile(r"^\$\{?LD_PRELOAD\}?:|:\$\{?LD_PRELOAD\}?$")
_RUNTIME_JSON = re.compile(r"\"env_vars\":\s*\{([^{}]*)\}")
_JSON_ITEM = re.compile(r"\"([A-Za-z_]\w*)\":\s*(\"[^\"]*\"|-?\d+)")
_QUOTED_CHARS = 200


def _is_text(glimpse: Glimpse) -> bool:
    return glimpse.size_bytes <= MAX_BYTES and identify(glimpse.head) is None


def _sniff_script(glimpse: Glimpse) -> bool:
    if not _is_text(glimpse) or _sniff_dump(glimpse):
        return False
    named = _ASSIGNS.search(glimpse.head) or b'"env_vars"' in glimpse.head
    return bool(_SHELL.match(glimpse.head) and named)


def _sniff_dump(glimpse: Glimpse) -> bool:
    if not _is_text(glimpse):
        return False
    lines = [line for line in glimpse.head.splitlines() if line.strip()]
    fit = sum(_DUMP_LINE.match(line) is not None for line in lines)
    return fit >= 3 and fit >= 0.8 * len(lines) and _ASSIGNS.search(glimpse.head) is not None


def _sniff_runtime(glimpse: Glimpse) -> bool:
    return "env_vars" in top_keys(yaml_head(glimpse))


def _read_script(path: Path, progress: Progress) -> EnvironmentFacts:
    """Read what a shell script exports, or sets before a command.

    Raises:
        ConfigError: The file is binary or too large.
    """
    found: dict[str, EnvironmentFact] = {}
    depth = 0
    for number, line in enumerate(read_config_text(path, progress).splitlines(), 1):
        if _CLOSES.match(line):
            depth = max(depth - 1, 0)
        elif _OPENS.match(line) and not _ONE_LINE.match(line):
            depth += 1
        if depth:
            continue
        for name in _unset(line):
            found.pop(f"env.{name}", None)
        for name, value in (*_assigned(line), *_in_json(line)):
            found.update(_fact(path, number, name, value, line))
    return EnvironmentFacts(str(path), found)


def _read_dump(path: Path, progress: Progress) -> EnvironmentFacts:
    """Read the output of ``env``, ``printenv`` or ``export -p``.

    Raises:
        ConfigError: The file is binary or too large.
    """
    found: dict[str, EnvironmentFact] = {}
    for number, line in enumerate(read_config_text(path, progress).splitlines(), 1):
        name, equals, value = line.removeprefix("declare -x ").partition("=")
        if equals:
            found.update(_fact(path, number, name.strip(), value.strip("\"' "), line))
    return EnvironmentFacts(str(path), found)


def _read_runtime(path: Path, progress: Progress) -> EnvironmentFacts:
    """Read the variables that Ray gives to every worker.

    Raises:
        ConfigError: Nothing in the file is YAML.
    """
    document = parse_yaml(read_config_text(path, progress), where=str(path))
    found: dict[str, EnvironmentFact] = {}
    for leaf in document.leaves:
        if leaf.path[0] == "env_vars" and len(leaf.path) == 2:
            value = "" if leaf.value is None else str(leaf.value)
            found.update(_fact(path, leaf.line, str(leaf.path[1]), value, leaf.text))
    return EnvironmentFacts(str(path), found)


def _fact(path: Path, number: int, name: str, value: str, line: str) -> dict[str, EnvironmentFact]:
    """Return the fact, empty where the variable is none or its value is not known."""
    if name == "LD_PRELOAD":
        value = _ITSELF.sub("", value)
    if not is_fact(name, value) or "$" in value or "`" in value:
        return {}
    # The line may set other variables too, and secrets among them: only this one is quoted.
    shown = f"{name}={value}"[:_QUOTED_CHARS]
    key = f"env.{name}"
    return {key: EnvironmentFact(key, value, Evidence(str(path), Side.BOTH, number, key, shown))}


def _assigned(line: str) -> Iterator[tuple[str, str]]:
    """Yield what ``export A=1 B=2`` or ``A=1 command`` sets; a plain ``A=1`` reaches no process."""
    words = _words(line)
    exports = words[:1] in (["export"], ["declare"], ["env"])
    rest = words[1:] if exports else words
    set_first = [word for word in _leading(rest) if _VARIABLE.fullmatch(word)]
    if exports or len(set_first) < len(rest):
        for word in set_first:
            name, _, value = word.partition("=")
            yield name, value


def _leading(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if not (_VARIABLE.fullmatch(word) or word.startswith("-")):
            return
        yield word


def _unset(line: str) -> list[str]:
    words = _words(line)
    return words[1:] if words[:1] == ["unset"] else []


def _in_json(line: str) -> Iterator[tuple[str, str]]:
    """Yield what ``ray job submit --runtime-env-json='{"env_vars": {…}}'`` sets."""
    for block in _RUNTIME_JSON.finditer(line):
        for item in _JSON_ITEM.finditer(block[1]):
            yield item[1], item[2].strip('"')


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line.removesuffix("\\"), comments=True)
    except ValueError:  # a quote that another line closes
        return []


READERS = (
    Reader("env_runtime", ArtifactKind.ENVIRONMENT, _sniff_runtime, _read_runtime, priority=10),
    Reader("env_dump", ArtifactKind.ENVIRONMENT, _sniff_dump, _read_dump, priority=8),
    Reader("env_script", ArtifactKind.ENVIRONMENT, _sniff_script, _read_script, priority=-10),
)
