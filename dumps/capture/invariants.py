"""What must hold at every step of a healthy run; `--stop-on error` ends a run where it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from align.core.threshold import Threshold
from dumps.capture.step_batch import StepBatch

MOST_PROBABILITY_SHIFT = Threshold(
    0.01,
    source="verl's documentation of rollout_probs_diff: above 0.01 is a problem",
    num_samples=0,
)
_FINITE = ("old_log_probs", "ref_log_prob", "advantages", "token_level_rewards", "values")


def broken_in_batch(
    batch: StepBatch, *, num_samples: int | None, eos_ids: frozenset[int], longest: int | None
) -> Iterator[str]:
    """Yield what is wrong with a step's rollouts and batch.

    Args:
        num_samples: responses per prompt the configuration asks for; None where not known.
        eos_ids: ids that end a response; empty where not known.
        longest: response length at which the engine cuts; None where not known.
    """
    yield from _not_finite(batch)
    yield from _groups(batch, num_samples)
    yield from _eos(batch, eos_ids, longest)


def broken_in_update(old: Tensor, new: Tensor, mask: Tensor) -> Iterator[str]:
    """Yield what is wrong with the first micro-batch trained on after its log_probs were computed.

    No update has come between, so the ratio is 1 up to the noise of other batch shapes.

    Args:
        old, new: log_probs [b, r] in nats.
        mask: [b, r], where the loss is taken.
    """
    own = mask != 0
    if not bool(own.any()):
        return
    before, after = old[own].double().exp(), new[own].double().exp()
    if not bool(torch.isfinite(after).all()):
        yield "log_probs of the first update are not finite"
        return
    shift = float((after - before).abs().mean())
    if shift > MOST_PROBABILITY_SHIFT.value:
        yield (
            f"before any update the policy's probabilities have moved by {shift:.4g} on average "
            f"(limit {MOST_PROBABILITY_SHIFT.value}): on-policy the ratio is 1, so forward passes "
            "for old_log_probs and for the update differ"
        )


def _not_finite(batch: StepBatch) -> Iterator[str]:
    mask = batch.tensors.get("response_mask")
    for name in _FINITE:
        tensor = batch.tensors.get(name)
        if tensor is None or mask is None or tensor.shape != mask.shape:
            continue
        count = int((~torch.isfinite(tensor) & (mask != 0)).sum())
        if count:
            yield f"{count} values of {name} are NaN or infinite"


def _groups(batch: StepBatch, num_samples: int | None) -> Iterator[str]:
    groups = Counter(record.uid for record in batch.records if record.uid is not None)
    odd = {uid: count for uid, count in groups.items() if count != num_samples}
    if num_samples is not None and odd:
        uid, count = next(iter(odd.items()))
        yield (
            f"{len(odd)} of {len(groups)} prompts have another number of responses than "
            f"n = {num_samples} ({uid}: {count})"
        )


def _eos(batch: StepBatch, eos_ids: frozenset[int], longest: int | None) -> Iterator[str]:
    if not eos_ids or longest is None:
        return
    ended = [r.response_ids for r in batch.records if r.response_ids]
    short = [ids for ids in ended if len(ids) < longest]
    if short and not any(ids[-1] in eos_ids for ids in short):
        yield (
            f"eos has vanished: {len(short)} responses end before the limit of {longest} tokens "
            f"and none of them ends with {sorted(eos_ids)}"
        )
