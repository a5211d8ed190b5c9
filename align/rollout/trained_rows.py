"""What the trainer made of each rollout: dumped score, trained score and advantage, row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.errors import AlignError
from align.core.rollout import RolloutBatch
from align.core.run import ArtifactKind
from align.rollout.token_ids import Ids, ids_of
from dumps.readers.registry import reader_named
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.store.run_data import RunData

FloatArray = npt.NDArray[np.float64]
Place = tuple[str, int]  # dump file and 1-based line
TokenText = tuple[Ids, Ids]  # prompt and response


@dataclass(frozen=True, slots=True, eq=False)
class TrainedStep:
    """One step's rows in the trainer's order, every one of them paired with a dumped row.

    Args:
        step: training step.
        source: file of the trainer's tensors.
        places: [b], where each row was dumped.
        texts: [b], token ids of prompt and response.
        groups: [b], equal for the responses to one prompt: the dumped uid, else the prompt.
        dumped: float64 [b], score by the dump; NaN where it has none.
        trained: float64 [b], token_level_rewards summed over the row.
        lengths: float64 [b], tokens under response_mask.
        least, greatest: float64 [b], of the advantages of the response's tokens; None where none
            were recorded.
        inputs: the file's tensors, read again by what needs every token (`token_signals`).
    """

    step: int
    source: str
    places: tuple[Place, ...]
    texts: tuple[TokenText, ...]
    groups: tuple[str, ...]
    dumped: FloatArray
    trained: FloatArray
    lengths: FloatArray
    least: FloatArray | None
    greatest: FloatArray | None
    inputs: TrainerInputs

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True)
class _DumpedRow:
    place: Place
    score: float
    group: str


_Dumped = Mapping[int, Mapping[TokenText, Sequence[_DumpedRow]]]


def trained_steps(data: RunData) -> list[TrainedStep]:
    """Return the steps of which every trained row is found in the dump, token by token."""
    artifacts = data.run.of_kind(ArtifactKind.TOKENS)
    dumped = _dumped(data) if artifacts else {}
    steps = []
    for artifact in artifacts if dumped else ():
        try:
            inputs = reader_named(artifact.format, artifact.kind).read(
                artifact.path, lambda _: None
            )
            step = _step(inputs, dumped) if isinstance(inputs, TrainerInputs) else None
        except AlignError:  # the tokens rung says which file, and why
            continue
        if step is not None:
            steps.append(step)
    return sorted(steps, key=lambda step: step.step)


def scores_by_text(step: TrainedStep) -> Mapping[TokenText, FloatArray]:
    """Return the dumped scores of each text: of equal rows nobody can say which is which."""
    scores: dict[TokenText, list[float]] = defaultdict(list)
    for text, score in zip(step.texts, step.dumped, strict=True):
        scores[text].append(float(score))
    return {text: np.array(values) for text, values in scores.items()}


def _dumped(data: RunData) -> _Dumped:
    """Return the rows that record token ids, by step and by text."""
    dumped: dict[int, dict[TokenText, list[_DumpedRow]]] = {}
    for batch in data.rollout_batches():
        columns = [batch.extras.get(name) for name in ("prompt_ids", "response_ids")]
        if batch.steps is None or columns[0] is None or columns[1] is None:
            continue
        for i, (prompt, response) in enumerate(zip(columns[0], columns[1], strict=True)):
            text = ids_of(prompt) or (), ids_of(response) or ()
            of_step = dumped.setdefault(int(batch.steps[i]), {})
            of_step.setdefault(text, []).append(_row(batch, i, text[0]))
    return dumped


def _row(batch: RolloutBatch, i: int, prompt: Ids) -> _DumpedRow:
    uid = None if batch.uids is None else batch.uids[i]
    return _DumpedRow(
        place=(batch.source, int(batch.lines[i])),
        score=float("nan") if batch.scores is None else float(batch.scores[i]),
        group=str(prompt) if uid is None else uid,
    )


def _step(inputs: TrainerInputs, dumped: _Dumped) -> TrainedStep | None:
    names = ("input_ids", "attention_mask", "response_mask", "token_level_rewards")
    given = [_matrix(inputs, name) for name in names]
    tensors = [tensor for tensor in given if tensor is not None]
    if inputs.step is None or len(tensors) < len(names):
        return None
    ids, attention, mask, rewards = tensors
    if ids.shape != attention.shape or mask.shape != rewards.shape or len(ids) != len(mask):
        return None
    texts = _texts(ids, attention != 0, mask.shape[1])
    rows = _paired(texts, dumped.get(inputs.step, {}))
    if rows is None:
        return None
    advantages = _matrix(inputs, "advantages")
    if advantages is not None and advantages.shape != mask.shape:
        advantages = None
    own = (mask != 0) & (attention[:, -mask.shape[1] :] != 0)
    return TrainedStep(
        step=inputs.step,
        source=str(inputs.path),
        places=tuple(row.place for row in rows),
        texts=texts,
        groups=tuple(row.group for row in rows),
        dumped=np.array([row.score for row in rows], np.float64),
        trained=rewards.sum(axis=1),  # verl sums without the mask
        lengths=mask.sum(axis=1),
        least=None if advantages is None else np.where(own, advantages, np.inf).min(axis=1),
        greatest=None if advantages is None else np.where(own, advantages, -np.inf).max(axis=1),
        inputs=inputs,
    )


def token_signals(step: TrainedStep) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Read a step's rewards, response_mask and advantages again, token by token.

    Returns:
        float64 [b, r] each; the advantages are infinite where a token is not the response's.

    Raises:
        DumpError: The file can no longer be read.
    """
    names = ("token_level_rewards", "response_mask", "attention_mask", "advantages")
    read = [_matrix(step.inputs, name) for name in names]
    rewards, mask, attention, advantages = (tensor for tensor in read if tensor is not None)
    own = (mask != 0) & (attention[:, -mask.shape[1] :] != 0)
    return rewards, mask, np.where(own, advantages, np.inf)


def _matrix(inputs: TrainerInputs, name: str) -> FloatArray | None:
    """float64 [b, width]; None where the file has no such numbers."""
    tensor = inputs.tensor(name)
    if tensor is None or tensor.ndim != 2 or tensor.dtype.kind not in "biuf":
        return None
    return tensor.astype(np.float64)


def _texts(ids: FloatArray, attended: npt.NDArray[np.bool_], width: int) -> tuple[TokenText, ...]:
    """Return the attended tokens of prompt and response; the last ``width`` columns answer."""
    split = ids.shape[1] - width
    whole = ids.astype(np.int64)
    return tuple(
        (
            tuple(row[:split][seen[:split]].tolist()),
            tuple(row[split:][seen[split:]].tolist()),
        )
        for row, seen in zip(whole, attended, strict=True)
    )


def _paired(
    texts: Sequence[TokenText], dumped: Mapping[TokenText, Sequence[_DumpedRow]]
) -> list[_DumpedRow] | None:
    """Pair rows by their tokens, equal ones in their order; None unless each row has a pair."""
    waiting = {text: list(rows) for text, rows in dumped.items()}
    rows = []
    for text in texts:
        left = waiting.get(text)
        if not left:
            return None
        rows.append(left.pop(0))
    return rows
