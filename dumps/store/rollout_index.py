"""A run's rollouts as numeric columns: texts as hashes, so that a million rows fit in memory.

Built in one pass over the dumps; the two rungs that need rollouts share it. Texts are read again,
by file and line, only where a finding quotes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from align.core.rollout import RolloutBatch
from dumps.readers import rollout_rows, rollout_store
from dumps.store.response_flags import flags_of

Int64 = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.bytes_]

_HASH_BYTES = 16
_MAX_SKIPPED = 20
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
        prompts, responses, ground_truths: S16, ascending 128-bit hashes of the distinct texts
            without special tokens; b"" stands for "no such text".
        length: int64 [n], characters of the response without special tokens.
        score: float64 [n], NaN where a row has none.
        flags: uint8 [n], bits of `ResponseFlag`.
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
    flags: npt.NDArray[np.uint8]
    prompts: Hashes
    responses: Hashes
    ground_truths: Hashes
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
        ids = fields.get("prompt_ids")
        return RowText(
            self.sources[source],
            line,
            str(prompt or ""),
            str(response or ""),
            len(ids) if isinstance(ids, list) else None,
        )


@dataclass(frozen=True, slots=True)
class RowText:
    """One row as its dump has it, for quoting."""

    source: str
    line: int
    prompt: str
    response: str
    num_prompt_tokens: int | None = None  # where the dump holds the prompt's token ids


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
    for batch in batches:
        parts.append(_part(batch, sources.setdefault(batch.source, len(sources))))
        formats[batch.format] = None
        notes.update(dict.fromkeys(f"{batch.source}: {note}" for note in batch.notes))
        room = _MAX_SKIPPED - len(skipped)
        skipped += [f"{batch.source}:{s.line}: {s.why}" for s in batch.skipped[:room]]
        num_skipped += batch.num_skipped
        absent = set(batch.absent) if absent is None else absent & set(batch.absent)
    return RolloutIndex(
        sources=tuple(sources),
        **_joined(parts),
        formats=tuple(formats),
        absent=frozenset(absent or ()),
        notes=tuple(notes),
        skipped=tuple(skipped),
        num_skipped=num_skipped,
    )


def without_special_tokens(text: str) -> str:
    """Remove what looks like special tokens of common vocabularies."""
    return _SPECIAL_TOKEN.sub("", text) if "<" in text else text


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
    "flags": np.dtype(np.uint8),
}


def _part(batch: RolloutBatch, source: int) -> _Part:
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
        "flags": np.fromiter(map(flags_of, batch.responses), np.uint8, num_rows),
    }
    return {name: column.astype(_DTYPES[name], copy=False) for name, column in columns.items()}


def _hashes(texts: Sequence[str | None]) -> Hashes:
    """Return a 128-bit hash of each text; consecutive equal texts are hashed once."""
    digests: list[bytes] = []
    last: str | None = None
    digest = b""
    for text in texts:
        if text != last:
            last, digest = text, b"" if text is None else _digest(text)
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
    for name in ("prompt", "response", "ground_truth"):
        columns[f"{name}s"], columns[name] = np.unique(columns[name], return_inverse=True)
    return columns
