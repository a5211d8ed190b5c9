"""What the trainer of both runs had of one step, row by row; rows are paired by their token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from align.core.errors import AlignError
from align.core.run import ArtifactKind
from dumps.readers.registry import reader_named
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.store.run_data import RunData

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]

VALUES = ("values", "returns", "token_level_rewards")
LOSS_INPUTS = ("old_log_probs", "ref_log_prob", "advantages", "response_mask")
_SAME = 1e-3  # relative; rounding of log_probs in bfloat16 stays below it after averaging


@dataclass(frozen=True, slots=True, eq=False)
class TrainerPair:
    """Tensors of the rows both runs trained on, in the same order."""

    source: tuple[str, str]
    reference: Mapping[str, Array]
    candidate: Mapping[str, Array]

    def both(self, name: str) -> tuple[Array, Array] | None:
        """Return one tensor of both runs, None where one lacks it."""
        if name not in self.reference or name not in self.candidate:
            return None
        return self.reference[name], self.candidate[name]


def trainer_pair(reference: RunData, candidate: RunData, step: int) -> TrainerPair | None:
    """Read a step of both runs; None where it is not recorded, or other rows were trained on."""
    inputs = [_inputs(run, step) for run in (reference, candidate)]
    if inputs[0] is None or inputs[1] is None:
        return None
    tensors = [_in_order(_tensors(each)) for each in inputs if each is not None]
    ids = [_attended(each) for each in tensors]
    if ids[0].shape != ids[1].shape or not np.array_equal(ids[0], ids[1]):
        return None
    return TrainerPair((str(inputs[0].path), str(inputs[1].path)), tensors[0], tensors[1])


def paired_steps(reference: RunData, candidate: RunData) -> list[int]:
    """Return the steps that both trainers recorded."""
    own, other = ({each.step for each in _all_inputs(run)} for run in (reference, candidate))
    return sorted(step for step in own & other if step is not None)


def same_loss_inputs(pair: TrainerPair | None) -> bool | None:
    """Tell whether the losses were computed from the same numbers; None where it is not known."""
    if pair is None or pair.both("advantages") is None:
        return None
    return all(_close(*both) for name in LOSS_INPUTS if (both := pair.both(name)) is not None)


def _close(one: Array, other: Array) -> bool:
    own, its = one.astype(np.float64), other.astype(np.float64)
    return float(np.linalg.norm(own - its)) <= _SAME * float(np.linalg.norm(own))


def _inputs(run: RunData, step: int) -> TrainerInputs | None:
    return next((each for each in _all_inputs(run) if each.step == step), None)


def _all_inputs(run: RunData) -> Iterator[TrainerInputs]:
    for artifact in run.run.of_kind(ArtifactKind.TOKENS):
        try:
            read = reader_named(artifact.format, artifact.kind).read(artifact.path, lambda _: None)
        except AlignError:  # the tokens rung says which file, and why
            continue
        if isinstance(read, TrainerInputs):
            yield read


def _tensors(inputs: TrainerInputs) -> dict[str, Array]:
    ids: Sequence[str] = ("input_ids", "attention_mask")
    wanted = (*ids, "rollout_log_probs", *LOSS_INPUTS, *VALUES)
    read = {name: inputs.tensor(name) for name in wanted}
    return {name: tensor for name, tensor in read.items() if tensor is not None}


def _attended(tensors: Mapping[str, Array]) -> Array:
    """Return the ids with all padding alike: frameworks pad with different ids."""
    ids, attention = tensors["input_ids"], tensors.get("attention_mask")
    return ids if attention is None else np.where(attention != 0, ids, -1)


def _in_order(tensors: dict[str, Array]) -> dict[str, Array]:
    order = np.lexsort(_attended(tensors).T[::-1])
    return {name: tensor[order] for name, tensor in tensors.items()}
