"""Tensors of a dump to rows: where each prompt ends, what is padding, which labels belong to what.

Layouts: verl's (prompts padded left, responses right, ``input_ids`` ends with ``responses``),
MindSpeed-RL's (``input_ids`` = prompt + response padded right, with lengths), TRL's (prompt and
completion apart), plain ``input_ids`` with labels or a mask, and packed sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from align.rollout.token_row import IGNORED, Bool, Int64, Packed, TokenBatch, TokenRow
from dumps.readers.token_tensors import TokenTensors

_MIN_PADDED_ROWS = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """One row's arrays by name; a name that the dump lacks is absent."""

    values: dict[str, Int64]

    def get(self, name: str) -> Int64 | None:
        return self.values.get(name)

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        return int(value[0]) if value is not None and value.size == 1 else None


def batch_of(dump: TokenTensors) -> TokenBatch:
    """Return a dump's rows; what does not fit is left out and named in ``problems``."""
    problems = list(dump.problems)
    tensors = {}
    for name, value in dump.tensors.items():
        whole, why = _whole(value)
        if why is not None:
            problems.append(f"{dump.source}: {name} {why}")
        if whole is not None:
            tensors[name] = whole
    packed = _packed(dump, tensors)
    if packed is not None:
        return _unpacked(dump, tensors, packed, problems)
    rows = []
    num_rows = max((len(value) for n, value in tensors.items() if _is_ids(n)), default=0)
    sides = _padding_ids(tensors)
    for number in range(num_rows):
        columns = _Columns({n: v[number] for n, v in tensors.items() if len(v) == num_rows})
        row = _row(dump, number, columns, sides)
        if row is not None:
            rows.append(row)
    if num_rows > len(rows):
        problems.append(f"{dump.source}: {num_rows - len(rows)} rows without tokens left out")
    return TokenBatch(
        dump.source, dump.step, rows, problems=tuple(problems), trajectories=dump.trajectories
    )


def _is_ids(name: str) -> bool:
    return name in ("input_ids", "prompts", "responses")


def _whole(value: object) -> tuple[list[Int64] | None, str | None]:
    """Return a tensor's rows as whole numbers, and what was wrong with it."""
    rows = list(value) if isinstance(value, Sequence) else value
    if isinstance(rows, np.ndarray):
        rows = [rows] if rows.ndim == 1 and rows.dtype.kind in "biuf" else list(rows)
    if not isinstance(rows, list) or not rows:
        return None, None
    made, num_fractions = [], 0
    for row in rows:
        array = np.atleast_1d(np.asarray(row))
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            return None, f"has dtype {array.dtype} and {array.ndim} axes a row; not used"
        if array.dtype.kind == "f":
            finite = np.nan_to_num(array, nan=-1, posinf=-1, neginf=-1)
            num_fractions += int((finite != np.rint(array)).sum())
            array = np.rint(finite)
        made.append(array.astype(np.int64))
    kind = np.asarray(rows[0]).dtype
    why = f"has {num_fractions} values that are no whole numbers" if num_fractions else None
    return made, why or (f"is stored as {kind}" if kind.kind == "f" else None)


def _padding_ids(tensors: dict[str, list[Int64]]) -> dict[str, int | None]:
    """Guess the id that pads each tensor: it ends or begins at least two rows, in runs."""
    return {name: _padding_id(rows) for name, rows in tensors.items() if _is_ids(name)}


def _padding_id(rows: Sequence[Int64]) -> int | None:
    if len({len(row) for row in rows}) > 1:
        return None  # rows of their own length need no padding
    runs: Counter[int] = Counter()
    for row in rows:
        for end in (row, row[::-1]):
            if len(end) > 1 and end[0] == end[1]:
                runs[int(end[0])] += 1
    best = runs.most_common(1)
    return best[0][0] if best and best[0][1] >= min(_MIN_PADDED_ROWS, len(rows)) else None


def _trimmed(ids: Int64, pad: int | None) -> Bool:
    """Return what is left of a row without the runs of the padding id at both ends."""
    other = np.flatnonzero(ids != pad) if pad is not None else np.arange(len(ids))
    kept = np.zeros(len(ids), np.bool_)
    if len(other):
        kept[other[0] : other[-1] + 1] = True
    return kept


def _row(
    dump: TokenTensors, number: int, columns: _Columns, pads: dict[str, int | None]
) -> TokenRow | None:
    ids = columns.get("input_ids")
    split: int | None
    joined = _joined(columns, pads) if ids is None or not len(ids) else None
    if joined is not None:
        ids, attended, split, known = joined
    elif ids is not None and len(ids):
        attended, known = _attended(columns, ids, pads.get("input_ids"))
        split = _split(columns, ids, attended)
    else:
        return None
    recorded = columns.get("response_mask")
    row = TokenRow(
        source=dump.source,
        row=number,
        step=dump.step,
        ids=ids,
        attended=attended,
        positions=_of_width(columns.get("position_ids"), len(ids)),
        mask=_mask(recorded, len(ids), split),
        labels=_of_width(columns.get("labels"), len(ids)),
        split=split,
        line=dump.lines[number] if dump.lines is not None else None,
        stopped=_stopped(dump, number),
        mask_start=split or 0 if recorded is not None and len(recorded) < len(ids) else 0,
        padding_known=known,
    )
    if dump.texts is not None:
        prompt_text, response_text = dump.texts[number]
        row = replace(row, prompt_text=prompt_text, response_text=response_text)
    return row


def _joined(columns: _Columns, pads: dict[str, int | None]) -> tuple[Int64, Bool, int, bool] | None:
    """Join a prompt and a response that were recorded apart."""
    prompt, response = columns.get("prompts"), columns.get("responses")
    if prompt is None and response is None:
        return None
    nothing = np.zeros(0, np.int64)
    parts = [nothing if part is None else part for part in (prompt, response)]
    ids = np.concatenate(parts)
    attention = columns.get("attention_mask")
    if attention is not None and len(attention) == len(ids):
        return ids, attention != 0, len(parts[0]), True
    kept = []
    for name, part, length in zip(
        ("prompts", "responses"),
        parts,
        (columns.number("prompt_length"), columns.number("response_length")),
        strict=True,
    ):
        kept.append(_trimmed(part, pads.get(name)) if length is None else _first(part, length))
    return ids, np.concatenate(kept), len(parts[0]), False


def _first(ids: Int64, length: int) -> Bool:
    kept: Bool = np.arange(len(ids)) < length
    return kept


def _attended(columns: _Columns, ids: Int64, pad: int | None) -> tuple[Bool, bool]:
    attention = columns.get("attention_mask")
    if attention is not None and len(attention) == len(ids):
        return attention != 0, True
    length = columns.number("input_ids_length")
    parts = columns.number("prompt_length"), columns.number("response_length")
    if length is None and parts[0] is not None and parts[1] is not None:
        length = parts[0] + parts[1]
    if length is not None:
        return _first(ids, length), True
    return _trimmed(ids, pad), False


def _split(columns: _Columns, ids: Int64, attended: Bool) -> int | None:
    """Return the first column of the response, by the surest of what was recorded."""
    responses = columns.get("responses")
    if responses is not None and 0 < len(responses) < len(ids) and _ends_with(ids, responses):
        return len(ids) - len(responses)
    length = columns.number("prompt_length")
    if length is not None and attended.any():
        return int(np.flatnonzero(attended)[0]) + length
    mask = columns.get("response_mask")
    if mask is not None and len(mask) < len(ids) - 1:
        return len(ids) - len(mask)
    if mask is not None and len(mask) == len(ids) and mask.any():
        return int(np.flatnonzero(mask)[0])
    labels = columns.get("labels")
    if labels is not None and len(labels) == len(ids) and (labels == IGNORED).any():
        return _split_by_labels(labels, ids, attended)
    return None


def _ends_with(ids: Int64, responses: Int64) -> bool:
    return bool(np.array_equal(ids[-len(responses) :], responses))


def _split_by_labels(labels: Int64, ids: Int64, attended: Bool) -> int | None:
    valid = np.flatnonzero((labels != IGNORED) & attended)
    if not len(valid):
        return None
    first = int(valid[0])
    shifted = labels[first] != ids[first] and first + 1 < len(ids)
    return first + 1 if shifted and labels[first] == ids[first + 1] else first


def _of_width(values: Int64 | None, width: int) -> Int64 | None:
    return values if values is not None and len(values) == width else None


def _mask(mask: Int64 | None, width: int, split: int | None) -> Int64 | None:
    """Lay a loss mask over the row's columns: of all of them, or of the response alone."""
    if mask is None or len(mask) == width or split is None:
        return _of_width(mask, width)
    if len(mask) > width - split:
        return None
    laid = np.zeros(width, np.int64)
    laid[split : split + len(mask)] = mask
    return laid


def _stopped(dump: TokenTensors, number: int) -> bool | None:
    reason = dump.finish_reasons[number] if dump.finish_reasons is not None else None
    return None if reason is None else reason in ("stop", "eos", "stop_token")


def _packed(dump: TokenTensors, tensors: dict[str, list[Int64]]) -> Packed | None:
    """Return how one row holds several sequences: by cu_seqlens, or by positions that restart."""
    ids, bounds = tensors.get("input_ids"), tensors.get("cu_seqlens")
    if ids is None or len(ids) != 1:
        return None
    positions = tensors.get("position_ids", [np.zeros(0, np.int64)])[0]
    restarts = None
    if len(positions) == len(ids[0]) > 0:
        restarts = np.flatnonzero(np.diff(positions, prepend=positions[0] + 1) < 0)
    if bounds is not None and len(bounds) == 1:
        return Packed(dump.source, dump.step, ids[0], bounds[0], restarts)
    padded = "attention_mask" in tensors and not tensors["attention_mask"][0].all()
    if restarts is None or len(restarts) < 2 or padded:
        return None
    made = np.append(restarts, len(ids[0]))
    return Packed(dump.source, dump.step, ids[0], made, restarts)


def _unpacked(
    dump: TokenTensors, tensors: dict[str, list[Int64]], packed: Packed, problems: list[str]
) -> TokenBatch:
    rows = []
    flat = {n: v[0] for n, v in tensors.items() if len(v[0]) == len(packed.ids)}
    for number, (start, end) in enumerate(_segments(packed)):
        columns = _Columns({name: values[start:end] for name, values in flat.items()})
        row = _row(replace(dump, lines=None, texts=None, finish_reasons=None), number, columns, {})
        if row is not None:
            rows.append(row)
    return TokenBatch(dump.source, dump.step, rows, packed, tuple(problems))


def _segments(packed: Packed) -> Iterator[tuple[int, int]]:
    bounds = np.clip(packed.boundaries, 0, len(packed.ids))
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if end > start:
            yield start, end
