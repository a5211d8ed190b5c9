"""One step's rollouts and training batch as a trainer holds them, and the files they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.rollout_record import RolloutRecord
from dumps.capture.plan import CapturePlan, What
from dumps.capture.writer import WriteFile

if TYPE_CHECKING:
    from torch import Tensor

TextOf = Callable[[Sequence[Sequence[int]]], list[str]]
"""Turns rows of ids into texts, as the framework's own dump does."""

_INPUTS = ("input_ids", "attention_mask", "responses")  # without these there is no batch to read
_BY_KIND = {
    What.INPUTS: (*_INPUTS, "position_ids", "response_mask"),
    What.LOG_PROBS: (
        *(*_INPUTS, "response_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob"),
        *("values", "token_level_scores", "token_level_rewards", "advantages", "returns"),
    ),
}


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step.

    Args:
        step: training step, numbered from 1.
        records: a response each, in the batch's order, without texts; empty where not recorded.
        tensors: by verl's names, [b, …], the last columns of ``input_ids`` being ``responses``.
        text_of: gives the texts, when they are written.
    """

    step: int
    records: Sequence[RolloutRecord]
    tensors: Mapping[str, Tensor]
    text_of: TextOf | None = None


def wanted(plan: CapturePlan) -> frozenset[str]:
    """Return the tensors that a plan records."""
    return frozenset(name for kind, names in _BY_KIND.items() if plan.takes(kind) for name in names)


def files_of(batch: StepBatch, plan: CapturePlan, rank: int | None = None) -> dict[str, WriteFile]:
    """Return what to write for a step, by path below the run folder.

    Args:
        rank: of the writing process, where every rank holds rows of its own.
    """
    place = "" if rank is None else f"rank={rank}/"
    files: dict[str, WriteFile] = {}
    if plan.takes(What.ROLLOUTS) and batch.records:
        files[f"rollout/{place}step={batch.step:06d}.parquet"] = lambda path: _rows(path, batch)
    names = wanted(plan) & batch.tensors.keys()
    if names >= set(_INPUTS):
        kept = {name: batch.tensors[name] for name in sorted(names)}
        files[f"trainer_inputs/{place}{batch.step:06d}.safetensors"] = lambda path: write_tensors(
            path, kept
        )
    return files


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name; each gets memory of its own, which the format asks for."""
    from safetensors.torch import save_file

    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(owned, path, dict(metadata) if metadata else None)


def _rows(path: Path, batch: StepBatch) -> None:
    from dumps.store.rollout_file import write_records

    records = batch.records
    if batch.text_of is not None:
        prompts = batch.text_of([record.prompt_ids or () for record in records])
        responses = batch.text_of([record.response_ids or () for record in records])
        records = [
            replace(record, prompt=prompt, response=response)
            for record, prompt, response in zip(records, prompts, responses, strict=True)
        ]
    write_records(path, records)


def decoder(tokenizer: Any) -> TextOf | None:
    """Return a decoder with a copy of the tokenizer, None where there is no tokenizer.

    A copy, as a tokenizer in use by another thread can refuse its owner ("Already borrowed").
    """
    if tokenizer is None:
        return None
    from copy import deepcopy

    own = deepcopy(tokenizer)

    def text_of(rows: Sequence[Sequence[int]]) -> list[str]:
        return list(own.batch_decode([list(row) for row in rows], skip_special_tokens=True))

    return text_of
