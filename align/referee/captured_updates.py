"""Updates of a captured run, from what every rank kept of its micro-batches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from align.core.run import ArtifactKind
from align.referee.captured_parts import captured_parts
from align.referee.recompute import NORM, POLICY, TOTAL
from align.referee.update import (
    Update,
    matrix,
    roundoff_of,
    tensors_by_step,
    updates_of,
)
from dumps.readers.captured_step import CapturedStep
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.store.run_data import RunData

_KEPT = ("log_probs", "advantages", "response_mask")
_OLD = "old_log_probs"
_OF_BATCH = (_OLD, "advantages", "response_mask", "ref_log_prob", "rollout_log_probs")
_ENTROPY = "entropys"
Micro = Mapping[str, npt.NDArray[np.generic]]


def recorded_updates(run: RunData, step: int | None = None) -> Iterator[Update]:
    """Yield the updates a run records in either form, in order, of one step where it is given."""
    own = run.run.of_kind(ArtifactKind.UPDATES)
    yield from updates_of(run, step) if own else captured_updates(run, step)


def captured_updates(run: RunData, step: int | None = None) -> Iterator[Update]:
    """Yield the updates that ranks kept micro-batch by micro-batch."""
    batches = tensors_by_step(run, ArtifactKind.TOKENS)
    loss = TOTAL if run.framework in ("mindspeed_rl", "trl") else POLICY
    for number, ranks in captured_parts(run, "actor", step):
        for update in range(max(rank.num_updates for rank in ranks)):
            found = _update(number, update, ranks, batches.get(number), loss)
            if found is not None:
                yield found


def _update(
    step: int,
    number: int,
    ranks: Sequence[CapturedStep],
    batch: TrainerInputs | None,
    loss: str,
) -> Update | None:
    """Join an update's micro-batches; ``loss`` names what the framework's loss function returns."""
    micros = [micro for rank in ranks for micro in _micros(rank, number)]
    if not micros:
        return None
    width = max(micro["log_probs"].shape[1] for micro in micros)
    joined = {name: _joined([micro[name] for micro in micros], width) for name in _KEPT}
    sizes = torch.tensor([len(micro["log_probs"]) for micro in micros])
    for name in (*_OF_BATCH, _ENTROPY):
        own = [micro[name] for micro in micros if name in micro]
        if len(own) == len(micros):
            joined[name] = _joined(own, width)
    rows, given = _columns_of(joined, batch)
    columns = given | joined
    if _OLD not in columns:
        return None
    return Update(
        step=step,
        number=number,
        source=ranks[0].path,
        rows=rows,
        micro_batches=torch.repeat_interleave(torch.arange(len(micros)), sizes),
        log_probs=joined["log_probs"],
        entropys=columns.get(_ENTROPY),
        mask=joined["response_mask"],
        old_log_probs=columns[_OLD],
        advantages=joined["advantages"],
        given=given,
        ref_log_prob=columns.get("ref_log_prob"),
        rollout_log_probs=columns.get("rollout_log_probs"),
        reported=_reported(ranks, number, loss),
        norm_of_gradients=_norm(ranks, number),
        roundoff=roundoff_of(micros[0]["log_probs"]),
    )


def _micros(rank: CapturedStep, number: int) -> Iterator[Micro]:
    count = 0
    while f"update.{number}.micro.{count}.log_probs" in rank.tensors:
        prefix = f"update.{number}.micro.{count}."
        names = (*_KEPT, *_OF_BATCH, _ENTROPY)
        kept = {n: rank.tensors[f"{prefix}{n}"] for n in names if f"{prefix}{n}" in rank.tensors}
        if kept.keys() >= set(_KEPT):
            yield kept
        count += 1


def _joined(parts: Sequence[npt.NDArray[np.generic]], width: int) -> Tensor:
    """Lay rows below each other, padded on the right to one width."""
    padded = [np.pad(p.astype(np.float64), ((0, 0), (0, width - p.shape[1]))) for p in parts]
    return torch.from_numpy(np.concatenate(padded))


def _reported(ranks: Sequence[CapturedStep], number: int, loss: str) -> dict[str, float]:
    """Return the loss that the micro-batches' make, and the norm."""
    reported = {}
    losses = [own for rank in ranks if (own := _losses(rank, number))]
    if losses:
        share = 1.0 if ranks[0].losses_add_up else 1 / len(losses[0])
        reported[loss] = sum(sum(own) for own in losses) * share / len(losses)
    norm = ranks[0].tensors.get(f"update.{number}.grad_norm")
    if norm is not None:
        reported[NORM] = float(norm.reshape(-1)[0].item())
    return reported


def _losses(rank: CapturedStep, number: int) -> list[float]:
    prefix = f"update.{number}.micro."
    named = (n for n in rank.tensors if n.startswith(prefix) and n.endswith(".policy_loss"))
    return [float(rank.tensors[name].reshape(-1)[0].item()) for name in named]


def _norm(ranks: Sequence[CapturedStep], number: int) -> float | None:
    """Return the norm of the shards of all ranks; None where they are not kept."""
    squares = [rank.gradient_squares(number) for rank in ranks]
    if not all(squares):
        return None
    return math.sqrt(sum(value for own in squares for value in own.values()))


def _columns_of(
    joined: Mapping[str, Tensor], batch: TrainerInputs | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Find every row in the step's batch; return its number and the batch's columns.

    By its old_log_probs; a loss that is given none is told its rows by the reference's log_probs.
    Rows that are not found, or a batch that is not recorded, are numbered as visited.
    """
    count, width = joined["log_probs"].shape
    key = _OLD if _OLD in joined else "ref_log_prob"
    known = None if batch is None else matrix(batch, key)
    if batch is None or known is None or known.shape[1] < width or key not in joined:
        return torch.arange(count), {}
    waiting: dict[bytes, list[int]] = defaultdict(list)
    for row, values in enumerate(known[:, :width]):
        waiting[values.numpy().tobytes()].append(row)
    keys = [values.numpy().tobytes() for values in joined[key]]
    if not all(waiting[key] for key in keys):
        return torch.arange(count), {}
    rows = torch.tensor(
        [waiting[key].pop(0) if len(waiting[key]) > 1 else waiting[key][0] for key in keys]
    )
    read = {name: matrix(batch, name) for name in _OF_BATCH}
    return rows, {name: t[rows, :width] for name, t in read.items() if t is not None}
