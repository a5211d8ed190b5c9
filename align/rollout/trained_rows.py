"""What the trainer made of each rollout: dumped score, trained score and advantage, row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.errors import AlignError
from align.core.run import ArtifactKind
from align.rollout.token_rows import Ids, TokenRows, matched, token_rows
from dumps.readers.registry import reader_named
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.store.run_data import RunData

FloatArray = npt.NDArray[np.float64]
Place = tuple[str, int]  # dump file and 1-based line


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
        least, greatest: float64 [b], of the advantages of the response's tokens; None where none
            were recorded.
    """

    step: int
    source: str
    places: tuple[Place, ...]
    texts: tuple[tuple[Ids, Ids], ...]
    groups: tuple[str, ...]
    dumped: FloatArray
    trained: FloatArray
    least: FloatArray | None
    greatest: FloatArray | None

    def __len__(self) -> int:
        return len(self.places)


def trained_steps(data: RunData) -> list[TrainedStep]:
    """Return the steps of which every trained row is found in the dump, word by word."""
    rows = token_rows(data)
    if not rows.engine or not rows.trainer:
        return []
    dumped = _dumped(data)
    inputs = _inputs(data)
    found = (_step(rows, number, inputs, dumped) for number in range(len(rows.trainer)))
    return [step for step in found if step is not None]


def _dumped(data: RunData) -> Mapping[Place, tuple[float, str | None]]:
    """Return score and uid of every dumped row."""
    dumped: dict[Place, tuple[float, str | None]] = {}
    for batch in data.rollout_batches():
        for i, line in enumerate(batch.lines):
            score = float("nan") if batch.scores is None else float(batch.scores[i])
            uid = None if batch.uids is None else batch.uids[i]
            dumped[batch.source, int(line)] = score, uid
    return dumped


def _inputs(data: RunData) -> Mapping[str, TrainerInputs]:
    inputs: dict[str, TrainerInputs] = {}
    for artifact in data.run.of_kind(ArtifactKind.TOKENS):
        try:
            read = reader_named(artifact.format, artifact.kind).read(artifact.path, lambda _: None)
        except AlignError:  # the tokens rung names it
            continue
        if isinstance(read, TrainerInputs):
            inputs[str(read.path)] = read
    return inputs


def _step(
    rows: TokenRows,
    number: int,
    inputs: Mapping[str, TrainerInputs],
    dumped: Mapping[Place, tuple[float, str | None]],
) -> TrainedStep | None:
    trainer = rows.trainer[number]
    pairs = matched(rows.engine.get(trainer.step, ()), trainer)
    whole = len(pairs) == len(trainer.input_ids) and all(
        engine.response == trainer.response(row) for engine, row in pairs
    )
    rewards = _tensor(inputs.get(trainer.source), "token_level_rewards")
    if not whole or trainer.mask is None or rewards is None or rewards.shape != trainer.mask.shape:
        return None
    mask = trainer.mask != 0
    advantages = _tensor(inputs.get(trainer.source), "advantages")
    if advantages is not None and advantages.shape != mask.shape:
        advantages = None
    places = tuple(engine.stands_in for engine, _ in pairs)
    uids = [dumped[place][1] for place in places]
    return TrainedStep(
        step=trainer.step,
        source=trainer.source,
        places=places,
        texts=tuple((engine.prompt, engine.response) for engine, _ in pairs),
        groups=tuple(
            str(engine.prompt) if uid is None else uid
            for (engine, _), uid in zip(pairs, uids, strict=True)
        ),
        dumped=np.array([dumped[place][0] for place in places], np.float64),
        trained=rewards.sum(axis=1),  # verl sums without the mask
        least=None if advantages is None else _over(advantages, mask, np.inf).min(axis=1),
        greatest=None if advantages is None else _over(advantages, mask, -np.inf).max(axis=1),
    )


def _tensor(inputs: TrainerInputs | None, name: str) -> FloatArray | None:
    try:
        tensor = None if inputs is None else inputs.tensor(name)
    except AlignError:
        return None
    if tensor is None or tensor.ndim != 2 or tensor.dtype.kind != "f":
        return None
    return tensor.astype(np.float64)


def _over(values: FloatArray, mask: npt.NDArray[np.bool_], otherwise: float) -> FloatArray:
    return np.where(mask, values, otherwise)


def scores_by_text(step: TrainedStep) -> Mapping[tuple[Ids, Ids], FloatArray]:
    """Return the dumped scores of each text: of equal rows nobody can say which is which."""
    scores: dict[tuple[Ids, Ids], list[float]] = defaultdict(list)
    for text, score in zip(step.texts, step.dumped, strict=True):
        scores[text].append(float(score))
    return {text: np.array(values) for text, values in scores.items()}
