"""One response with everything any dump records of it: what conversions hand on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One response. A field that the source does not have is None, never a made-up value.

    Args:
        prompt, response: text.
        prompt_ids, response_ids: token ids without padding.
        log_probs: of response_ids by the rollout engine, in nats.
        score: of the whole response.
        step: training step.
        dataset_index: row of the data set, from 0.
        sample_index: which of the responses to its prompt, from 0.
        finish_reason: "stop", "length" or another word of the engine.
        extras: further fields as the source spells them, JSON values.
    """

    prompt: str | None = None
    response: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    response_ids: tuple[int, ...] | None = None
    log_probs: tuple[float, ...] | None = None
    score: float | None = None
    step: int | None = None
    dataset_index: int | None = None
    sample_index: int | None = None
    finish_reason: str | None = None
    ground_truth: str | None = None
    uid: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)


COLUMNS = (
    "prompt",
    "response",
    "prompt_ids",
    "response_ids",
    "log_probs",
    "score",
    "step",
    "dataset_index",
    "sample_index",
    "finish_reason",
    "ground_truth",
    "uid",
)
