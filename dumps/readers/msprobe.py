"""A msprobe dump: ``dump.json`` of one step and process, with ``construct.json`` beside it.

Statistics, tensor and md5 or xor dumps of the levels L0, L1 and mix. The file is Python's JSON: NaN
and Infinity occur. A process that was killed leaves a file without an end; the entries before it
are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from align.core.errors import AlignError, DumpError
from align.core.run import ArtifactKind
from dumps.readers.msprobe_keys import Key, parse_key
from dumps.readers.reader import Glimpse, Progress, Reader

FORMAT = "msprobe_dump"
TENSORS = "dump_tensor_data"
_SECTIONS = {"input_args": "input", "input_kwargs": "kwargs"}
_KNOWN_SECTIONS = ("input_args", "input_kwargs", "input", "output", "parameters")
_FIX = "dump the step again and end it with debugger.stop() and debugger.step()"
_STATISTICS = ("Max", "Min", "Mean", "Norm")


@dataclass(frozen=True, slots=True)
class DumpedTensor:
    """One tensor of an entry.

    Args:
        place: section ("input", "kwargs", "output", "parameters", "gradient"), then indices and
            names within it.
        maximum, minimum, mean, norm: in the tensor's own dtype; None where they are not recorded.
        digest: of its bytes, CRC-32 or the XOR of its 64-bit words.
        file: the tensor itself, where the task was "tensor".
    """

    place: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    maximum: float | None
    minimum: float | None
    mean: float | None
    norm: float | None
    digest: str | None
    file: Path | None


@dataclass(frozen=True, slots=True)
class DumpedValue:
    """An argument that is no tensor: its place as that of a tensor, its type and value."""

    place: tuple[str, ...]
    type: str
    value: str


@dataclass(frozen=True, slots=True)
class DumpedEntry:
    """One call of a module or API, or the gradients of a module's parameters.

    Args:
        text: the key as it stands in the file.
        parent: key of the module it was called in; None where no module is recorded around it.
        is_recompute: the forward was computed again for the backward pass.
    """

    text: str
    key: Key
    parent: str | None
    is_recompute: bool
    tensors: tuple[DumpedTensor, ...]
    values: tuple[DumpedValue, ...]


@dataclass(frozen=True, slots=True)
class MsprobeDump:
    """One process's record of one step.

    Args:
        task: "statistics" or "tensor"; level: "L0", "L1" or "mix".
        entries: in the order in which the calls ended.
        problems: what could not be read, with place and fix.
    """

    source: str
    task: str
    level: str
    framework: str
    entries: tuple[DumpedEntry, ...]
    problems: tuple[AlignError, ...] = ()


def read(path: Path, progress: Progress) -> MsprobeDump:
    """Read one ``dump.json``.

    Raises:
        DumpError: It is no dump, or has no entry.
    """
    text = path.read_bytes().decode("utf-8", "replace")
    progress(len(text))
    document, problems = _document(path, text)
    parents, broken = _parents(path)
    problems += broken
    entries: list[DumpedEntry] = []
    odd: list[str] = []
    for key, raw in document["data"].items():
        entry = _entry(path, key, raw, parents)
        if entry is None:
            odd.append(key)
        else:
            entries.append(entry)
    if odd:
        problems.append(
            _broken(path, f"{len(odd)} entries have another form and are left out", odd[0])
        )
    if not entries:
        raise _broken(path, "has no entry that can be read")
    task, level, framework = (
        str(document.get(name) or "") for name in ("task", "level", "framework")
    )
    return MsprobeDump(str(path), task, level, framework, tuple(entries), tuple(problems))


def _document(path: Path, text: str) -> tuple[dict[str, Any], list[AlignError]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = _salvaged(text)
        cut = f"is cut off or damaged after {len(document['data'])} entries"
        return document, [_broken(path, cut)]
    if not isinstance(document, dict) or not isinstance(document.get("data"), dict):
        raise _broken(path, "is no dump.json of msprobe")
    return document, []


def _salvaged(text: str) -> dict[str, Any]:
    """Read the head and every whole entry of a document without an end."""
    decoder = json.JSONDecoder()
    head, _, tail = text.partition('"data":')
    fields = dict(re.findall(r'"(task|level|framework)":\s*"([^"]*)"', head))
    data: dict[str, Any] = {}
    at, separator = tail.find("{") + 1, re.compile(r"[\s,]*")
    while at > 0:
        try:
            name, at = decoder.raw_decode(tail, _skip(separator, tail, at))
            at = tail.index(":", at) + 1
            entry, at = decoder.raw_decode(tail, _skip(separator, tail, at))
        except (ValueError, RecursionError):
            break
        if isinstance(name, str):
            data[name] = entry
    return {**fields, "data": data}


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _parents(path: Path) -> tuple[dict[str, str | None], list[AlignError]]:
    """Read ``construct.json``: the module each call happened in."""
    file = path.with_name(path.name.replace("dump", "construct"))
    try:
        parents = json.loads(file.read_bytes()) if file.is_file() else {}
        if not isinstance(parents, dict):
            raise ValueError("no object")
    except (ValueError, OSError, RecursionError) as error:
        return {}, [_broken(file, f"cannot be read ({str(error)[:80]}); modules lose their order")]
    kept = {k: v for k, v in parents.items() if v is None or isinstance(v, str)}
    return kept, []


def _entry(
    path: Path, text: str, raw: Any, parents: Mapping[str, str | None]
) -> DumpedEntry | None:
    key = parse_key(text)
    if key is None or not isinstance(raw, dict):
        return None
    tensors: list[DumpedTensor] = []
    values: list[DumpedValue] = []
    folder = path.parent / TENSORS
    try:
        for place, leaf in _leaves(_sections(key, raw)):
            tensor = _tensor(folder, place, leaf)
            if tensor is not None:
                tensors.append(tensor)
            elif "value" in leaf:
                values.append(DumpedValue(place, leaf["type"], repr(leaf["value"])))
    except (KeyError, TypeError, ValueError):
        return None
    parent = parents.get(text)
    return DumpedEntry(
        text, key, parent, raw.get("is_recompute") is True, tuple(tensors), tuple(values)
    )


def _sections(key: Key, raw: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if key.direction == "parameters_grad":
        for name, value in raw.items():
            whole = isinstance(value, list) and len(value) == 1
            yield ("gradient", name), value[0] if whole else value
        return
    for name in _KNOWN_SECTIONS:
        if name in raw:
            yield (_SECTIONS.get(name, name),), raw[name]


def _leaves(
    values: Iterator[tuple[tuple[str, ...], Any]],
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for place, value in values:
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            yield place, value
        elif isinstance(value, dict):
            yield from _leaves(((*place, str(k)), v) for k, v in value.items())
        elif isinstance(value, list):
            yield from _leaves(((*place, str(i)), v) for i, v in enumerate(value))
        elif value is not None:
            raise TypeError(f"{type(value).__name__} in place of a value's description")


def _tensor(folder: Path, place: tuple[str, ...], leaf: dict[str, Any]) -> DumpedTensor | None:
    if "dtype" not in leaf or "shape" not in leaf:
        return None
    name = leaf.get("data_name")
    is_plain = isinstance(name, str) and "/" not in name and "\\" not in name
    maximum, minimum, mean, norm = (_number(leaf.get(statistic)) for statistic in _STATISTICS)
    return DumpedTensor(
        place,
        str(leaf["dtype"]).removeprefix("torch."),
        tuple(int(n) for n in leaf["shape"]),
        maximum,
        minimum,
        mean,
        norm,
        digest=str(leaf["md5"]) if leaf.get("md5") is not None else None,
        file=folder / name if is_plain and name else None,
    )


def _number(value: Any) -> float | None:
    """Return a statistic; msprobe writes those of booleans as true and false."""
    return None if value is None else float(value)


def _broken(path: Path, problem: str, key: str | None = None) -> DumpError:
    return DumpError(where=str(path), key=key, problem=problem, fix=_FIX)


_HEAD = re.compile(rb'"level":\s*"(L0|L1|mix)"')


def _sniff(glimpse: Glimpse) -> bool:
    head = glimpse.head[:2048]
    return head.lstrip()[:1] == b"{" and b'"task"' in head and _HEAD.search(head) is not None


READER = Reader(FORMAT, ArtifactKind.LAYERS, _sniff, read)
