"""A run's rollouts as numeric columns: texts as hashes, so that a million rows fit in memory.

Built in one pass over the dumps; the two rungs that need rollouts share it. Texts are read again,
by file and line, only where a finding quotes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from align.core.rollout import RolloutBatch
from dumps.readers import rollout_rows, rollout_store
from dumps.store.response_flags import ResponseFlag, flags_of

Int64 = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.bytes_]

_HASH_BYTES = 16
_MAX_SKIPPED = 20
_TRUTHS = ("gts", "label")
# verl decodes with skip_special_tokens=True, other dumps keep them: texts are compared without.
_SPECIAL_TOKEN = re.compile(r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?s>|<pad>")


@dataclass(frozen=True, slots=True, eq=False)
class RolloutIndex:
    """Rows of all dumps of a run, column by column.

    Args:
        sources: dump files, in path order; ``source`` indexes them.
        source: int32 [n].
        line: int64 [n], 1-based.
        step: int64 [n], -1 where a row has none.
        prompt, response, ground_truth: int64 [n], each row's text as a position in the table
            ``prompts``, ``responses``, ``ground_truths``.
        prompts, responses, ground_truths, questions: S16, ascending 128-bit hashes of the distinct
            texts without special tokens; b"" stands for "no such text".
        length: int64 [n], characters of the response without special tokens.
        score: float64 [n], NaN where a row has none.
        flags: uint16 [n], bits of `ResponseFlag`.
        question: int64 [n], each row's prompt as a position in ``questions``: its text without
            role markers and without regard to white space.
        num_tokens: int32 [n], of the response; -1 where the dump has no ids.
        task: int32 [n], position in ``tasks``; -1 where a row has none.
        formats: readers the rows came from.
        absent: columns that no dump has.
        skipped: "file:line: why" of the first lines left out; ``num_skipped`` counts all.
    """

    sources: tuple[str, ...]
    source: npt.NDArray[np.int32]
    line: Int64
    step: Int64
    prompt: Int64
    response: Int64
    ground_truth: Int64
    length: Int64
    score: npt.NDArray[np.float64]
    flags: npt.NDArray[np.uint16]
    question: Int64
    num_tokens: npt.NDArray[np.int32]
    task: npt.NDArray[np.int32]
    prompts: Hashes
    responses: Hashes
    ground_truths: Hashes
    questions: Hashes
    tasks: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    num_skipped: int = 0

    def __len__(self) -> int:
        return len(self.line)

    def texts(self, rows: Sequence[int] | Int64) -> list[RowText]:
        """Read prompts and responses of some rows again, in the order asked for."""
        wanted: dict[int, list[int]] = {}
        for row in rows:
            wanted.setdefault(int(self.source[row]), []).append(int(self.line[row]))
        read = {i: _read_again(Path(self.sources[i]), lines) for i, lines in wanted.items()}
        return [self._text(int(row), read) for row in rows]

    def _text(self, row: int, read: dict[int, Any]) -> RowText:
        source, line = int(self.source[row]), int(self.line[row])
        fields = read[source].get(line, {})
        prompt = fields.get("input", fields.get("prompt"))
        response = fields.get("output", fields.get("response"))
        truth = next((fields[key] for key in _TRUTHS if fields.get(key) is not None), None)
        ids, response_ids = fields.get("prompt_ids"), fields.get("response_ids")
        log_probs = fields.get("rollout_log_probs")
        return RowText(
            self.sources[source],
            line,
            str(prompt or ""),
            str(response or ""),
            ground_truth=None if truth is None else str(truth),
            num_prompt_tokens=len(ids) if isinstance(ids, list | tuple) else None,
            response_ids=tuple(response_ids) if isinstance(response_ids, list | tuple) else (),
            log_probs=tuple(log_probs) if isinstance(log_probs, list | tuple) else (),
        )


@dataclass(frozen=True, slots=True)
class RowText:
    """One row as its dump has it, for quoting."""

    source: str
    line: int
    prompt: str
    response: str
    ground_truth: str | None = None
    num_prompt_tokens: int | None = None  # where the dump holds the prompt's token ids
    response_ids: tuple[int, ...] = ()  # empty where the dump has none
    log_probs: tuple[float, ...] = ()  # of the engine; likewise


def _read_again(path: Path, lines: Sequence[int]) -> Mapping[int, dict[str, Any]]:
    if path.suffix == ".parquet":
        return rollout_store.read_rows(path, lines)
    return rollout_rows.read_rows(path, lines)


def build_index(batches: Iterable[RolloutBatch]) -> RolloutIndex:
    """Reduce a stream of batches to one index."""
    parts: list[_Part] = []
    sources: dict[str, int] = {}
    formats: dict[str, None] = {}
    notes: dict[str, None] = {}
    skipped: list[str] = []
    num_skipped = 0
    absent: set[str] | None = None
    tasks: dict[str, int] = {}
    for batch in batches:
        parts.append(_part(batch, sources.setdefault(batch.source, len(sources)), tasks))
        formats[batch.format] = None
        notes.update(dict.fromkeys(f"{batch.source}: {note}" for note in batch.notes))
        room = _MAX_SKIPPED - len(skipped)
        skipped += [f"{batch.source}:{s.line}: {s.why}" for s in batch.skipped[:room]]
        num_skipped += batch.num_skipped
        absent = set(batch.absent) if absent is None else absent & set(batch.absent)
    return RolloutIndex(
        sources=tuple(sources),
        **_joined(parts),
        tasks=tuple(tasks),
        formats=tuple(formats),
        absent=frozenset(absent or ()),
        notes=tuple(notes),
        skipped=tuple(skipped),
        num_skipped=num_skipped,
    )


def without_special_tokens(text: str) -> str:
    """Remove what looks like special tokens of common vocabularies."""
    return _SPECIAL_TOKEN.sub("", text) if "<" in text else text


_SPECIAL_LINE = re.compile(r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?s>|<pad>|\[/?INST\]")
_ROLES = frozenset({"system", "user", "assistant", "human", "model", "tool", "developer"})
_ROLE_LENGTH = 12  # characters of the longest, with a colon and a space
_ROLE_END = re.compile(r"(?:assistant|model)\s*:?\s*\Z", re.IGNORECASE)


def question_of(prompt: str) -> str:
    """Return what stays of a prompt when special tokens, role markers and white space are lost."""
    text = _SPECIAL_LINE.sub("\n", prompt) if "<" in prompt or "[" in prompt else prompt
    text = " ".join(" ".join(map(_without_role, text.split("\n"))).split())
    end = text[-_ROLE_LENGTH:]
    return (text[: -len(end)] + _ROLE_END.sub("", end)).strip() if end else text


def _without_role(line: str) -> str:
    """Return a line without the role that it is, or starts with before a colon."""
    line = line.strip()
    head, colon, rest = line[:_ROLE_LENGTH].partition(":")
    if (colon or len(line) < _ROLE_LENGTH) and head.strip().lower() in _ROLES:
        return (rest + line[_ROLE_LENGTH:]).strip()
    return line


_Part = dict[str, npt.NDArray[Any]]

_HASH = np.dtype(f"S{_HASH_BYTES}")
_DTYPES: dict[str, np.dtype[Any]] = {
    "source": np.dtype(np.int32),
    "line": np.dtype(np.int64),
    "step": np.dtype(np.int64),
    "prompt": _HASH,
    "response": _HASH,
    "ground_truth": _HASH,
    "length": np.dtype(np.int64),
    "score": np.dtype(np.float64),
    "flags": np.dtype(np.uint16),
    "question": _HASH,
    "num_tokens": np.dtype(np.int32),
    "task": np.dtype(np.int32),
}
_TASKS = ("task", "data_source")
_RESPONSE_IDS, _FINISH_REASON = "response_ids", "finish_reason"
_LENGTH = "length"


def _part(batch: RolloutBatch, source: int, tasks: dict[str, int]) -> _Part:
    num_rows = len(batch)
    nothing = np.zeros(num_rows, _HASH)
    responses = [without_special_tokens(text) for text in batch.responses]
    truths = batch.ground_truths
    columns: _Part = {
        "source": np.full(num_rows, source),
        "line": batch.lines,
        "step": np.full(num_rows, -1) if batch.steps is None else batch.steps,
        "prompt": nothing if batch.prompts is None else _hashes(batch.prompts),
        "response": _hashes(responses),
        "ground_truth": nothing if truths is None else _hashes([t and t.strip() for t in truths]),
        "length": np.fromiter(map(len, responses), np.int64, num_rows),
        "score": np.full(num_rows, np.nan) if batch.scores is None else batch.scores,
        "flags": np.fromiter(map(flags_of, batch.responses), np.uint16, num_rows) | _ends(batch),
        "question": nothing if batch.prompts is None else _hashes(batch.prompts, question_of),
        "num_tokens": _num_tokens(batch),
        "task": _tasks(batch, tasks),
    }
    return {name: column.astype(_DTYPES[name], copy=False) for name, column in columns.items()}


def _ends(batch: RolloutBatch) -> npt.NDArray[np.uint16]:
    """Return the bits that say whether the engine cut a response."""
    reasons = batch.extras.get(_FINISH_REASON)
    if reasons is None:
        return np.zeros(len(batch), np.uint16)
    known, cut = ResponseFlag.END_KNOWN.value, ResponseFlag.CUT.value
    bits = (0 if r is None else known | (cut if r == _LENGTH else 0) for r in reasons)
    return np.fromiter(bits, np.uint16, len(batch))


def _num_tokens(batch: RolloutBatch) -> npt.NDArray[np.int32]:
    """Count token ids, which dumps hand on as JSON lists."""
    ids = batch.extras.get(_RESPONSE_IDS)
    if ids is None:
        return np.full(len(batch), -1, np.int32)
    counts = (
        (i.count(",") + (len(i) > 2)) if isinstance(i, str) and i.startswith("[") else -1
        for i in ids
    )
    return np.fromiter(counts, np.int32, len(batch))


def _tasks(batch: RolloutBatch, tasks: dict[str, int]) -> npt.NDArray[np.int32]:
    column = next((batch.extras[name] for name in _TASKS if name in batch.extras), None)
    if column is None:
        return np.full(len(batch), -1, np.int32)
    numbers = (-1 if t is None else tasks.setdefault(str(t), len(tasks)) for t in column)
    return np.fromiter(numbers, np.int32, len(batch))


def _hashes(texts: Sequence[str | None], reduce: Callable[[str], str] | None = None) -> Hashes:
    """Return a 128-bit hash of each text; consecutive equal texts are hashed once."""
    digests: list[bytes] = []
    last: str | None = None
    digest = b""
    for text in texts:
        if text != last:
            last = text
            digest = b"" if text is None else _digest(reduce(text) if reduce else text)
        digests.append(digest)
    return np.array(digests, _HASH)


def _digest(text: str) -> bytes:
    data = without_special_tokens(text).encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=_HASH_BYTES).digest()


EMPTY_TEXT = _digest("")  # of a field that is there and holds nothing


def _joined(parts: list[_Part]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, dtype)
        for name, dtype in _DTYPES.items()
    }
    for name in ("prompt", "response", "ground_truth", "question"):
        columns[f"{name}s"], columns[name] = np.unique(columns[name], return_inverse=True)
    keeps = np.zeros(1 + columns["source"].max(initial=-1), np.bool_)
    keeps[columns["source"][(columns["flags"] & ResponseFlag.SPECIAL_END) > 0]] = True
    columns["flags"][keeps[columns["source"]]] |= np.uint16(ResponseFlag.SPECIAL_KEPT)
    return columns
