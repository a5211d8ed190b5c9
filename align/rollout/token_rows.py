"""Token ids of a run: what the rollout engine produced, and what the trainer was given for it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from align.core.errors import AlignError
from align.core.finding import Scalar
from align.core.rollout import RolloutBatch
from align.core.run import ArtifactKind
from align.rollout.token_layout import batch_of
from align.rollout.token_row import Ids, Int64, TokenBatch, TokenRow
from dumps.readers.reader import no_progress
from dumps.readers.registry import reader_named
from dumps.readers.token_tensors import TokenTensors
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.store.run_data import RunData


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One response as the rollout engine gave it.

    Args:
        mask: 1 at tokens the model generated, 0 at those of tools; as long as the response.
        finish_reason: "stop", "length" or another word of the engine; None where not recorded.
        place: dump file and 1-based line.
    """

    prompt: Ids
    response: Ids
    mask: Ids
    text: str
    prompt_text: str
    finish_reason: str | None
    place: tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class TrainerStep:
    """One step's batch as the trainer got it: b rows, p prompt columns, r response columns.

    Args:
        input_ids, attention: int64 [b, p + r].
        positions: int64 [b, p + r]; None where not recorded or of several axes.
        mask: int64 [b, r], where the loss is taken; None where not recorded.
        labels: int64 [b, p + r]; None where not recorded.
    """

    step: int
    source: str
    input_ids: Int64
    attention: Int64
    positions: Int64 | None
    mask: Int64 | None
    num_response_columns: int
    labels: Int64 | None = None

    @property
    def split(self) -> int:
        """p, the first response column."""
        return self.input_ids.shape[1] - self.num_response_columns

    @property
    def padding(self) -> frozenset[int]:
        """Ids that stand where nothing is attended."""
        return frozenset(np.unique(self.input_ids[self.attention == 0]).tolist())

    def prompt(self, row: int) -> Ids:
        """Return the attended tokens of the prompt columns."""
        return self._attended(row, slice(None, self.split))

    def response(self, row: int) -> Ids:
        """Return the attended tokens of the response columns."""
        return self._attended(row, slice(self.split, None))

    def rows(self) -> list[TokenRow]:
        """Return the rows one by one."""
        return [
            TokenRow(
                source=self.source,
                row=i,
                step=self.step,
                ids=self.input_ids[i],
                attended=self.attention[i] != 0,
                positions=None if self.positions is None else self.positions[i],
                mask=None if self.mask is None else self._laid(self.mask[i]),
                labels=None if self.labels is None else self.labels[i],
                split=self.split,
                mask_start=self.split,
            )
            for i in range(len(self.input_ids))
        ]

    def _laid(self, mask: Int64) -> Int64:
        return np.concatenate([np.zeros(self.split, np.int64), mask])

    def _attended(self, row: int, columns: slice) -> Ids:
        ids = self.input_ids[row, columns]
        return tuple(ids[self.attention[row, columns] != 0].tolist())


@dataclass(frozen=True, slots=True)
class TokenRows:
    """All token ids of a run.

    Args:
        engine: by step.
        trainer: batches laid out as verl's.
        plain: every other dump of ids.
        unread: which files or rows could not be used, and why.
    """

    engine: Mapping[int, Sequence[EngineRow]]
    trainer: Sequence[TrainerStep]
    plain: Sequence[TokenBatch] = ()
    unread: tuple[str, ...] = ()


def token_rows(data: RunData, *, engine_alone: bool = False) -> TokenRows:
    """Read a run's token ids; files that cannot be used are named, not raised.

    Args:
        engine_alone: read the engine's rows even where no trainer's are there to compare.
    """
    engine: dict[int, list[EngineRow]] = defaultdict(list)
    artifacts = data.run.of_kind(ArtifactKind.TOKENS)
    if not artifacts and not engine_alone:
        return TokenRows({}, ())
    for batch in data.rollout_batches():
        for step, row in _engine_rows(batch):
            engine[step].append(row)
    steps: list[TrainerStep] = []
    plain: list[TokenBatch] = []
    unread: list[str] = []
    for artifact in artifacts:
        try:
            read = reader_named(artifact.format, artifact.kind).read(artifact.path, no_progress)
            dumps = [read] if isinstance(read, TrainerInputs) else list(read)
        except AlignError as error:
            unread.append(str(error))
            continue
        for dump in dumps:
            step_or_batch = _sorted_out(dump, unread)
            if isinstance(step_or_batch, TrainerStep):
                steps.append(step_or_batch)
            elif step_or_batch is not None:
                plain.append(step_or_batch)
    steps.sort(key=lambda step: step.step)
    return TokenRows(engine, steps, plain, tuple(unread))


def _sorted_out(
    dump: TrainerInputs | TokenTensors, unread: list[str]
) -> TrainerStep | TokenBatch | None:
    """Return a dump as a trainer's step if it is laid out as verl's, else as rows."""
    try:
        return _trainer_step(_OneStep.of(dump))
    except (AlignError, ValueError) as error:
        if isinstance(dump, TrainerInputs):
            unread.append(f"{dump.path}: {error}")
            return None
    batch = batch_of(dump)
    unread.extend(batch.problems)
    return batch


def matched(engine: Sequence[EngineRow], trainer: TrainerStep) -> list[tuple[EngineRow, int]]:
    """Pair engine rows with trainer rows; trainers may reorder rows, so by prompt, not by place.

    Of the responses to one prompt equal ones are paired first, the rest in their order.
    """
    waiting: dict[Ids, list[EngineRow]] = defaultdict(list)
    for row in engine:
        waiting[row.prompt].append(row)
    pairs, left = [], []
    for number in range(len(trainer.input_ids)):
        prompt, response = trainer.prompt(number), trainer.response(number)
        equal = next((e for e in waiting[prompt] if e.response == response), None)
        if equal is None:
            left.append((number, prompt))
        else:
            waiting[prompt].remove(equal)
            pairs.append((equal, number))
    pairs += [(waiting[prompt].pop(0), number) for number, prompt in left if waiting[prompt]]
    return sorted(pairs, key=lambda pair: pair[1])


def _engine_rows(batch: RolloutBatch) -> list[tuple[int, EngineRow]]:
    columns = [batch.extras.get(name) for name in ("prompt_ids", "response_ids")]
    if batch.steps is None or columns[0] is None or columns[1] is None:
        return []
    nothing: list[Scalar] = [None] * len(batch)
    masks = batch.extras.get("response_mask", nothing)
    reasons = batch.extras.get("finish_reason", nothing)
    rows = []
    for i, (prompt, response) in enumerate(zip(columns[0], columns[1], strict=True)):
        prompt_ids, ids, mask = _ids(prompt), _ids(response), _ids(masks[i])
        if prompt_ids is None or ids is None or batch.steps[i] < 0:
            continue
        row = EngineRow(
            prompt=prompt_ids,
            response=ids,
            mask=mask if mask is not None and len(mask) == len(ids) else (1,) * len(ids),
            text=batch.responses[i],
            prompt_text=batch.prompts[i] if batch.prompts is not None else "",
            finish_reason=str(reasons[i]) if reasons[i] is not None else None,
            place=(batch.source, int(batch.lines[i])),
        )
        rows.append((int(batch.steps[i]), row))
    return rows


def _ids(value: Scalar) -> Ids | None:
    """Return a list of whole numbers; dumps hand lists on as their JSON."""
    if not isinstance(value, str) or not value.startswith("["):
        return None
    try:
        ids: Any = json.loads(value)
    except ValueError:
        return None
    return tuple(ids) if all(type(item) is int for item in ids) else None


class _Tensors(Protocol):
    def tensor(self, name: str) -> npt.NDArray[np.generic] | None: ...


@dataclass(frozen=True, slots=True)
class _OneStep:
    """A dump of either kind, asked for one tensor after the other."""

    source: str
    step: int | None
    tensors: _Tensors

    @classmethod
    def of(cls, dump: TrainerInputs | TokenTensors) -> _OneStep:
        if isinstance(dump, TrainerInputs):
            return cls(str(dump.path), dump.step, dump)
        return cls(dump.source, dump.step, _Loaded(dump))


@dataclass(frozen=True, slots=True)
class _Loaded:
    dump: TokenTensors

    def tensor(self, name: str) -> npt.NDArray[np.generic] | None:
        value = self.dump.tensors.get(name)
        return value if isinstance(value, np.ndarray) else None


def _trainer_step(inputs: _OneStep) -> TrainerStep:
    """Read one step's tensors.

    Raises:
        ValueError: The step is not known, or the tensors do not fit each other.
    """
    if inputs.step is None:
        raise ValueError("the file's name has no step")
    ids, attention, responses, positions, mask, labels = (
        _whole(inputs.tensors.tensor(name))
        for name in (
            "input_ids",
            "attention_mask",
            "responses",
            "position_ids",
            "response_mask",
            "labels",
        )
    )
    if ids is None or attention is None or responses is None or ids.shape != attention.shape:
        raise ValueError("input_ids, attention_mask and responses do not fit each other")
    if not responses.size or not np.array_equal(ids[:, -responses.shape[1] :], responses):
        raise ValueError("input_ids do not end with responses, as verl's do")
    return TrainerStep(
        inputs.step,
        inputs.source,
        ids,
        attention,
        positions if positions is not None and positions.shape == ids.shape else None,
        mask if mask is not None and mask.shape == responses.shape else None,
        responses.shape[1],
        labels if labels is not None and labels.shape == ids.shape else None,
    )


def _whole(tensor: npt.NDArray[np.generic] | None) -> Int64 | None:
    if tensor is None or tensor.ndim != 2 or tensor.dtype.kind not in "biuf":
        return None
    return tensor.astype(np.int64)
