"""Rollout dumps in JSON lines, row by row with all they hold; for conversion, not for bulk work."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from align.core.metric import Skipped
from align.core.rollout_record import RolloutRecord
from dumps.readers.json_lines import Unreadable, iter_objects
from dumps.readers.mindspeed_rl_rollout import spelling_of
from dumps.readers.rollout_rows import Spelling, number_of, step_of
from dumps.readers.verl_rollout import SPELLING

PROMPT_IDS, RESPONSE_IDS, LOG_PROBS = "prompt_ids", "response_ids", "rollout_log_probs"
DATASET_INDEX, SAMPLE_INDEX, FINISH_REASON = "index", "sample_index", "finish_reason"


@dataclass(frozen=True, slots=True)
class Fields:
    """What a dump in JSON lines calls the fields of `RolloutRecord`."""

    prompt: str
    response: str
    score: str
    ground_truth: str
    uid: str = "uid"
    step: str = "step"

    def row(self, record: RolloutRecord) -> dict[str, Any]:
        """Return a record as the object of one line; what it does not have is left out."""
        named = {
            self.prompt: record.prompt,
            self.response: record.response,
            self.ground_truth: record.ground_truth,
            self.score: record.score,
            self.step: record.step,
            self.uid: record.uid,
            DATASET_INDEX: record.dataset_index,
            SAMPLE_INDEX: record.sample_index,
            FINISH_REASON: record.finish_reason,
            PROMPT_IDS: record.prompt_ids,
            RESPONSE_IDS: record.response_ids,
            LOG_PROBS: record.log_probs,
        }
        given = {key: value for key, value in named.items() if value is not None}
        return {**given, **{key: v for key, v in record.extras.items() if key not in given}}


VERL = Fields("input", "output", "score", "gts")
MINDSPEED_RL = Fields("prompt", "response", "reward", "label")


def read_records(path: Path) -> Iterator[RolloutRecord | Skipped]:
    """Yield every line of a verl or MindSpeed-RL dump as a record, or why it is none."""
    spelling: Spelling | None = None
    for line, row, _ in iter_objects(path):
        if isinstance(row, Unreadable):
            yield Skipped(line, row.why)
            continue
        if spelling is None:
            spelling = SPELLING if isinstance(row.get("output"), str) else spelling_of(row)
        if isinstance(row.get(spelling.response), str):
            yield _record(row, spelling)
        else:
            yield Skipped(line, f"no text under {spelling.response!r}")


def _record(row: Mapping[str, Any], spelling: Spelling) -> RolloutRecord:
    score = number_of(row.get(spelling.score)) if spelling.score else None
    taken: dict[str | None, Any] = {
        spelling.prompt: _text(row.get(spelling.prompt)),
        spelling.response: row[spelling.response],
        spelling.score: score,
        spelling.step: _whole(row.get(spelling.step)) if spelling.step else None,
        spelling.ground_truth: _text(row.get(spelling.ground_truth or "")),
        spelling.uid: _text(row.get(spelling.uid or "")),
        PROMPT_IDS: whole_numbers(row.get(PROMPT_IDS)),
        RESPONSE_IDS: whole_numbers(row.get(RESPONSE_IDS)),
        LOG_PROBS: numbers(row.get(LOG_PROBS)),
        DATASET_INDEX: _whole(row.get(DATASET_INDEX)),
        SAMPLE_INDEX: _whole(row.get(SAMPLE_INDEX)),
        FINISH_REASON: _only_text(row.get(FINISH_REASON)),
    }
    # What could not be taken as its column stays what it is: nothing is dropped in reading.
    rest = {
        key: value
        for key, value in row.items()
        if key not in taken or (taken[key] is None and value is not None)
    }
    return RolloutRecord(
        prompt=taken[spelling.prompt],
        response=taken[spelling.response],
        prompt_ids=taken[PROMPT_IDS],
        response_ids=taken[RESPONSE_IDS],
        log_probs=taken[LOG_PROBS],
        score=score,
        step=taken[spelling.step] if spelling.step else None,
        dataset_index=taken[DATASET_INDEX],
        sample_index=taken[SAMPLE_INDEX],
        finish_reason=taken[FINISH_REASON],
        ground_truth=taken[spelling.ground_truth],
        uid=taken[spelling.uid],
        extras=rest,
    )


def whole_numbers(value: object) -> tuple[int, ...] | None:
    """Return a list of whole numbers; None for anything else."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        return None
    return tuple(value)


def numbers(value: object) -> tuple[float, ...] | None:
    """Return a list of numbers, NaN for null; None for anything else."""
    if not isinstance(value, list):
        return None
    if not all(item is None or type(item) in (int, float) for item in value):
        return None
    return tuple(math.nan if item is None else float(item) for item in value)


def _whole(value: object) -> int | None:
    return step if (step := step_of(value)) >= 0 else None


def _only_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _text(value: object) -> str | None:
    """Return text; what is not a string (chat lists, numbers) as its JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
