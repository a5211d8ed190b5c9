"""Passes over pairs of a captured DPO run: what each micro-batch's loss is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from align.objective.dpo import sequence_log_probs
from align.referee.captured_parts import captured_parts
from align.referee.update import roundoff_of
from dumps.readers.captured_step import CapturedStep
from dumps.store.run_data import RunData

ROLE = "preference"
_NEEDED = ("input_ids", "attention_mask", "response_mask", "log_probs", "preference_loss")
Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two responses, by hashes of their ids with those of the prompt, and where they begin."""

    prompt: bytes
    chosen: bytes
    rejected: bytes

    @property
    def exchanged(self) -> Pair:
        """The same responses with the other one preferred."""
        return Pair(self.prompt, self.rejected, self.chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Summed log_probs of [chosen rows, rejected rows].

    Args:
        values: float64 [2 pairs], nats.
        rounding: float64 [2 pairs], what summing them in the recorded dtype can hide of each.
    """

    values: Tensor
    rounding: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PreferencePass:
    """One micro-batch of p pairs.

    Args:
        source: file it was read from.
        micro: number of the micro-batch within its rank's optimizer step.
        policy, reference: of both responses; no reference where it is not recorded.
        lengths: float64 [2p], tokens of each response.
        loss: as computed.
        roundoff: unit roundoff of the dtype it was computed in.
    """

    step: int
    rank: int
    micro: int
    source: str
    pairs: tuple[Pair, ...]
    policy: Sums
    reference: Sums | None
    lengths: Tensor
    loss: float
    roundoff: float


@dataclass(frozen=True, slots=True)
class PairTokens:
    """log_probs of the tokens of one pair, chosen then rejected.

    Args:
        policy: float64 [n].
        reference: float64 [n]; sums of both responses, [2], where only these are recorded.
        num_tokens: n.
    """

    policy: npt.NDArray[np.float64]
    reference: npt.NDArray[np.float64] | None
    num_tokens: int


def preference_passes(run: RunData) -> Iterator[PreferencePass]:
    """Yield every recorded micro-batch, by step and rank."""
    for part in _parts(run):
        for micro, tensors in _micros(part):
            yield _pass(part, micro, tensors)


def pair_tokens(run: RunData, step: int) -> Iterator[tuple[Pair, PairTokens]]:
    """Yield the pairs of a step with the log_probs of their tokens."""
    for part in _parts(run, step):
        for _, tensors in _micros(part):
            counted = tensors["response_mask"][:, 1:] != 0
            pairs = _pairs(tensors)
            for place, pair in enumerate(pairs):
                rows = (place, place + len(pairs))
                policy = _of_rows(tensors["log_probs"], counted, rows)
                yield pair, PairTokens(policy, _reference(tensors, counted, rows), len(policy))


def step_gradients(run: RunData, step: int) -> dict[str, float] | None:
    """Return the squared sums of a step's gradients by parameter.

    None where several ranks are recorded: whether they hold shards or copies is not known.
    """
    parts = list(_parts(run, step))
    return parts[0].gradient_squares(0) or None if len(parts) == 1 else None


def _parts(run: RunData, step: int | None = None) -> Iterator[CapturedStep]:
    """Yield what ranks kept of pairs, of one step where it is given, a file at a time."""
    for _, parts in captured_parts(run, ROLE, step):
        yield from parts


def _micros(part: CapturedStep) -> Iterator[tuple[int, Mapping[str, Array]]]:
    """Yield number and tensors of each micro-batch that is recorded whole."""
    micro = 0
    while any(name.startswith(f"update.0.micro.{micro}.") for name in part.tensors):
        prefix = f"update.0.micro.{micro}."
        own = {n.removeprefix(prefix): t for n, t in part.tensors.items() if n.startswith(prefix)}
        if own.keys() >= set(_NEEDED) and _are_shifted(own):
            yield micro, own
        micro += 1


def _are_shifted(tensors: Mapping[str, Array]) -> bool:
    """Whether log_probs are those of every id but the first."""
    rows, length = tensors["input_ids"].shape
    return tensors["log_probs"].shape == (rows, length - 1)


def _pass(part: CapturedStep, micro: int, tensors: Mapping[str, Array]) -> PreferencePass:
    mask = tensors["response_mask"]
    return PreferencePass(
        step=part.step,
        rank=part.rank,
        micro=micro,
        source=str(part.path),
        pairs=_pairs(tensors),
        policy=_sums(tensors["log_probs"], mask),
        reference=_reference_sums(tensors),
        lengths=torch.from_numpy((mask != 0).sum(axis=1).astype(np.float64)),
        loss=float(tensors["preference_loss"].reshape(-1)[0].item()),
        roundoff=roundoff_of(tensors["preference_loss"]),
    )


def _reference_sums(tensors: Mapping[str, Array]) -> Sums | None:
    if "ref_log_prob" in tensors:
        return _sums(tensors["ref_log_prob"], tensors["response_mask"])
    if "ref_sequence_log_probs" not in tensors:
        return None
    given = tensors["ref_sequence_log_probs"]
    values = torch.from_numpy(given.astype(np.float64))
    return Sums(values, roundoff_of(given) * values.abs())


def _sums(log_probs: Array, mask: Array) -> Sums:
    """Sum each row; the bound on rounding is that of `align.referee.recompute`."""
    counted = torch.from_numpy((mask[:, 1:] != 0).astype(np.float64))
    values = torch.from_numpy(log_probs.astype(np.float64))
    terms = 8 + 4 * counted.sum(-1).sqrt()
    size = sequence_log_probs(values.abs(), counted)
    return Sums(sequence_log_probs(values, counted), roundoff_of(log_probs) * terms * size)


def _pairs(tensors: Mapping[str, Array]) -> tuple[Pair, ...]:
    ids, mask = tensors["input_ids"], tensors["response_mask"] != 0
    attended = tensors["attention_mask"] != 0
    prompts = [_hash(i[a & ~m]) for i, a, m in zip(ids, attended, mask, strict=True)]
    rows = [_hash(i[a], m[a]) for i, a, m in zip(ids, attended, mask, strict=True)]
    half = len(rows) // 2
    return tuple(
        Pair(prompt, chosen, rejected)
        for prompt, chosen, rejected in zip(
            prompts[:half], rows[:half], rows[half : 2 * half], strict=True
        )
    )


def _hash(*arrays: Array) -> bytes:
    made = blake2b(digest_size=16)
    for array in arrays:
        made.update(np.ascontiguousarray(array.astype(np.int64)).tobytes())
    return made.digest()


def _reference(
    tensors: Mapping[str, Array], counted: Array, rows: tuple[int, int]
) -> npt.NDArray[np.float64] | None:
    if "ref_log_prob" in tensors:
        return _of_rows(tensors["ref_log_prob"], counted, rows)
    sums = tensors.get("ref_sequence_log_probs")
    return None if sums is None else sums[list(rows)].astype(np.float64)


def _of_rows(values: Array, counted: Array, rows: tuple[int, int]) -> npt.NDArray[np.float64]:
    return np.concatenate([values[row][counted[row] != 0].astype(np.float64) for row in rows])
