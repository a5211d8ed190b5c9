"""The recorded batch of one step, as float64 tensors, with the dumped rows it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from align.core.errors import AlignError
from align.core.run import ArtifactKind
from align.referee.update import matrix, tensors_by_step
from align.rollout.trained_rows import TrainedStep, trained_steps
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.store.run_data import RunData

_TENSORS = (
    "input_ids",
    "attention_mask",
    "response_mask",
    "token_level_rewards",
    "advantages",
    "values",
    "old_log_probs",
    "ref_log_prob",
    "rollout_log_probs",
)
_LOG_PROBS = ("attention_mask", "response_mask", "old_log_probs", "rollout_log_probs")


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """One step.

    Args:
        step: training step, from 1.
        tensors: [b, r] by verl's names, those recorded; input_ids and
            attention_mask are [b, p + r].
        trained: its rows paired with the rollout dump; None where they cannot be paired.
        source: file of the tensors, "" where nobody asked.
    """

    step: int
    tensors: Mapping[str, Tensor]
    trained: TrainedStep | None
    source: str = ""

    def get(self, *names: str) -> tuple[Tensor, ...] | None:
        """Return tensors by name, None unless all are recorded."""
        found = tuple(self.tensors[name] for name in names if name in self.tensors)
        return found if len(found) == len(names) else None


def step_batch(run: RunData, step: int) -> StepBatch | None:
    """Read the batch of a step; None where none is recorded."""
    tensors = _read(run, step, _TENSORS)
    if tensors is None:
        return None
    trained = next((each for each in trained_steps(run) if each.step == step), None)
    return StepBatch(step, tensors, trained)


def log_prob_batch(run: RunData, step: int) -> StepBatch | None:
    """Read a step's log_probs and masks alone, not paired with its rows; None of no record."""
    tensors = _read(run, step, _LOG_PROBS)
    return None if tensors is None else StepBatch(step, tensors, None)


def batches(run: RunData, names: Sequence[str]) -> Iterator[StepBatch]:
    """Yield the named tensors of every recorded step, not paired with its rows."""
    for step, file in sorted(tensors_by_step(run, ArtifactKind.TOKENS).items()):
        tensors = _tensors(run, file, names)
        if tensors is not None:
            yield StepBatch(step, tensors, None, str(file.path))


def _read(run: RunData, step: int, names: Sequence[str]) -> dict[str, Tensor] | None:
    file = tensors_by_step(run, ArtifactKind.TOKENS).get(step)
    return None if file is None else _tensors(run, file, names)


def _tensors(run: RunData, file: TrainerInputs, names: Sequence[str]) -> dict[str, Tensor] | None:
    try:
        read = {name: matrix(file, name) for name in names}
    except AlignError as error:
        run.keep_problem(error)
        return None
    return {name: tensor for name, tensor in read.items() if tensor is not None}


def batch_steps(run: RunData) -> list[int]:
    """Return the steps whose batch is recorded."""
    return sorted(tensors_by_step(run, ArtifactKind.TOKENS))
