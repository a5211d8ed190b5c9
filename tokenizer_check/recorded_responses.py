"""How the responses end that a run recorded: as the engine gave them, and in the trainer's loss."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from align.core.errors import AlignError
from align.core.run import ArtifactKind
from dumps.readers.reader import no_progress
from dumps.readers.registry import reader_named
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.store.run_data import RunData

MAX_ROWS = 4096  # of the engine
MAX_STEPS = 16  # of the trainer
_RESPONSE, _PROMPT = "response_ids", "prompt_ids"


@dataclass(frozen=True, slots=True)
class RecordedResponses:
    """The first rows that hold token ids.

    Args:
        num_rows: recorded responses of the engine.
        last: how many of them end with each id.
        largest_id: in prompts and responses of engine and trainer; -1 without any.
    """

    num_rows: int = 0
    last: Mapping[int, int] = field(default_factory=dict)
    largest_id: int = -1

    def num_ending_with(self, ids: frozenset[int]) -> int:
        """Count the responses that end with one of these ids."""
        return sum(self.last.get(number, 0) for number in ids)


@dataclass(frozen=True, slots=True)
class TrainedEnds:
    """Rows of the trainer that ended before the length limit.

    Args:
        num_rows: such rows.
        num_lost: of these, rows of which no end token is in the loss.
        source: the first file with a lost one, else the first file.
    """

    num_rows: int
    num_lost: int
    source: str


def recorded_responses(data: RunData) -> RecordedResponses:
    """Read the ends of the first responses that a run recorded as ids."""
    last: Counter[int] = Counter()
    largest, num_rows = -1, 0
    for prompt, response in _rows(data):
        largest = max(largest, *prompt, *response, -1)
        if response:
            last[response[-1]] += 1
            num_rows += 1
        if num_rows == MAX_ROWS:
            break
    for inputs in _trainer_inputs(data):
        ids = _matrix(inputs, "input_ids")
        if ids is not None and ids.size:
            largest = max(largest, int(ids.max()))
    return RecordedResponses(num_rows, dict(last), largest)


def trained_ends(data: RunData, ends: frozenset[int]) -> TrainedEnds | None:
    """Count the rows whose end token is not in the loss; None where no trainer row tells.

    A row counts where padding follows its response: one that fills all columns was cut, and has
    no end to lose.
    """
    num_rows = num_lost = 0
    source = first = None
    for inputs in _trainer_inputs(data):
        lost = _lost(inputs, ends)
        if lost is None:
            continue
        first = first or str(inputs.path)
        num_rows += len(lost)
        num_lost += int(lost.sum())
        if source is None and lost.any():
            source = str(inputs.path)
    return TrainedEnds(num_rows, num_lost, source or first) if first and num_rows else None


def _lost(inputs: TrainerInputs, ends: frozenset[int]) -> npt.NDArray[np.bool_] | None:
    """bool [rows that ended], whether the loss misses their end token."""
    responses, attention, mask = (
        _matrix(inputs, name) for name in ("responses", "attention_mask", "response_mask")
    )
    if responses is None or attention is None or mask is None or responses.shape != mask.shape:
        return None
    if len(attention) != len(responses) or attention.shape[1] < responses.shape[1]:
        return None
    attended = attention[:, attention.shape[1] - responses.shape[1] :] != 0
    is_end = np.isin(responses, list(ends))
    ended = ~attended[:, -1] & attended.any(axis=1) if responses.size else np.zeros(0, bool)
    kept: npt.NDArray[np.bool_] = (is_end & attended & (mask != 0)).any(axis=1)
    lost: npt.NDArray[np.bool_] = ~kept[ended]
    return lost


def _rows(data: RunData) -> Iterator[tuple[list[int], list[int]]]:
    for batch in data.rollout_batches():
        if _RESPONSE not in batch.extras:
            return
        prompts = batch.extras.get(_PROMPT, [None] * len(batch))
        for prompt, response in zip(prompts, batch.extras[_RESPONSE], strict=True):
            yield _ids(prompt), _ids(response)


def _ids(text: object) -> list[int]:
    try:
        loaded = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return []
    is_ids = isinstance(loaded, list) and all(type(number) is int for number in loaded)
    return loaded if is_ids else []


def _trainer_inputs(data: RunData) -> Iterator[TrainerInputs]:
    for artifact in tuple(data.run.of_kind(ArtifactKind.TOKENS))[:MAX_STEPS]:
        try:
            inputs = reader_named(artifact.format, artifact.kind).read(artifact.path, no_progress)
        except AlignError:  # the tokens rung says which file, and why
            continue
        if isinstance(inputs, TrainerInputs):
            yield inputs


def _matrix(inputs: TrainerInputs, name: str) -> npt.NDArray[np.int64] | None:
    try:
        tensor = inputs.tensor(name)
    except AlignError:
        return None
    if tensor is None or tensor.ndim != 2 or tensor.dtype.kind not in "biuf":
        return None
    return tensor.astype(np.int64)
