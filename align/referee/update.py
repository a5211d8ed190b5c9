"""What one optimizer update computed with, and what it reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from align.core.errors import AlignError
from align.core.run import ArtifactKind
from dumps.readers.registry import reader_named
from dumps.readers.safetensors_numbers import are_bfloat16
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.store.run_data import RunData

NEEDED = ("response_mask", "old_log_probs", "advantages")
OPTIONAL = ("ref_log_prob", "rollout_log_probs")
_OF_UPDATES = ("rows", "update", "micro_batch", "log_probs")
_FLOAT32 = 2.0**-24  # of sums and of what advantages are multiplied with
_NORM_OF_GRADIENTS = "align/norm_of_gradients"


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One update; m rows in the order visited, r response tokens, all float64 but the indices.

    Args:
        step: training step, from 1.
        number: of the update within its step, from 0.
        source: file it was read from.
        rows: int64 [m], of the step's batch.
        micro_batches: int64 [m].
        log_probs: [m, r], of the model in this update.
        entropys: [m, r], or None.
        mask, old_log_probs, advantages: [m, r].
        given: [m, r], what the step's batch holds at these rows, by name; empty where the update
            does not keep what it trained on apart from it.
        ref_log_prob, rollout_log_probs: [m, r], or None.
        reported: its metrics by name.
        resolution: the smallest difference a metric's printed form shows; 0 where it is not named.
        norm_of_gradients: recomputed from the gradients by what recorded the run, or None.
        roundoff: unit roundoff of the dtype the loss was computed in.
    """

    step: int
    number: int
    source: Path
    rows: Tensor
    micro_batches: Tensor
    log_probs: Tensor
    entropys: Tensor | None
    mask: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    ref_log_prob: Tensor | None
    rollout_log_probs: Tensor | None
    reported: Mapping[str, float]
    norm_of_gradients: float | None
    roundoff: float
    resolution: Mapping[str, float] = field(default_factory=dict)
    given: Mapping[str, Tensor] = field(default_factory=dict)


def in_bfloat16(update: Update) -> Update | None:
    """Return an update whose log_probs are bfloat16 numbers again; None where they were not.

    Ratios and KL of such numbers are rounded again and again: computed in bfloat16 too they come
    out as the trainer's did, where float64 can only bound what rounding hides.
    """
    names = ("log_probs", "old_log_probs", "ref_log_prob")
    given = {name: tensor for name in names if (tensor := getattr(update, name)) is not None}
    narrow = {name: tensor.bfloat16() for name, tensor in given.items()}
    if not all(bool((narrow[name].double() == given[name]).all()) for name in given):
        return None
    return replace(update, **narrow, roundoff=_FLOAT32)


def updates_of(run: RunData, step: int | None = None) -> Iterator[Update]:
    """Yield the recorded updates in order, of one step where it is given.

    Steps whose batch or updates are not recorded whole are left out.
    """
    batches = tensors_by_step(run, ArtifactKind.TOKENS)
    for number, file in sorted(tensors_by_step(run, ArtifactKind.UPDATES).items()):
        if number in batches and step in (None, number):
            try:
                yield from _of_step(number, batches[number], file)
            except AlignError as error:
                run.keep_problem(error)


def tensors_by_step(run: RunData, kind: ArtifactKind) -> dict[int, TrainerInputs]:
    """Return the files of named tensors of a kind, by the step they are of."""
    files = {}
    for artifact in run.run.of_kind(kind):
        try:
            read = reader_named(artifact.format, kind).read(artifact.path, lambda _: None)
        except AlignError as error:
            run.keep_problem(error)
            continue
        if isinstance(read, TrainerInputs) and read.step is not None:
            files[read.step] = read
    return files


def _of_step(step: int, batch: TrainerInputs, file: TrainerInputs) -> Iterator[Update]:
    columns = {name: matrix(batch, name) for name in (*NEEDED, *OPTIONAL)}
    visited = {name: matrix(file, name) for name in (*_OF_UPDATES, "entropys")}
    if any(columns[n] is None for n in NEEDED) or any(visited[n] is None for n in _OF_UPDATES):
        return
    dtype = file.tensor("log_probs")
    assert dtype is not None
    scalars = _scalars(file)
    for number in range(int(_given(visited["update"]).max()) + 1):
        own = _given(visited["update"]) == number
        rows = _given(visited["rows"])[own].long()
        picked = {k: None if v is None else v[rows] for k, v in columns.items()}
        metrics = {name: values[number] for name, values in scalars.items()}
        entropys = visited["entropys"]
        yield Update(
            step=step,
            number=number,
            source=file.path,
            rows=rows,
            micro_batches=_given(visited["micro_batch"])[own].long(),
            log_probs=_given(visited["log_probs"])[own],
            entropys=None if entropys is None else entropys[own],
            mask=_given(picked["response_mask"]),
            old_log_probs=_given(picked["old_log_probs"]),
            advantages=_given(picked["advantages"]),
            ref_log_prob=picked["ref_log_prob"],
            rollout_log_probs=picked["rollout_log_probs"],
            norm_of_gradients=metrics.pop(_NORM_OF_GRADIENTS, None),
            reported=metrics,
            roundoff=roundoff_of(dtype),
        )


def _scalars(file: TrainerInputs) -> dict[str, list[float]]:
    """Return the metrics by name, a value an update."""
    found = {}
    for name in file.shapes:
        tensor = file.tensor(name) if "/" in name else None
        if tensor is not None and tensor.ndim == 1:
            found[name] = [float(value) for value in tensor]
    return found


def matrix(file: TrainerInputs, name: str) -> Tensor | None:
    """Read a tensor of numbers as float64; None where the file has none of that name."""
    tensor = file.tensor(name)
    if tensor is None or tensor.dtype.kind not in "biuf":
        return None
    return torch.from_numpy(tensor.astype(np.float64))


def roundoff_of(tensor: npt.NDArray[np.generic]) -> float:
    """Return the unit roundoff of the dtype a tensor of floats was computed in.

    bfloat16 comes as float32 numbers that it holds exactly.
    """
    own = float(np.finfo(tensor.dtype.name).eps) / 2
    if tensor.dtype != np.float32 or not tensor.any():
        return own
    return 2.0**-8 if are_bfloat16(tensor) else own


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
