"""One row of a data set: what is asked, and what a rule needs to judge the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Messages = tuple[Mapping[str, str], ...]  # {"role": …, "content": …}, oldest first


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt with its ground truth.

    Args:
        index: position in the data files, from 0; selecting and filtering rows keeps it.
        data_source: where the row comes from, verl's key of reward functions.
        task: what is asked; decides which rules apply.
        messages: the conversation so far; empty when `prompt_ids` are given.
        ground_truth: what the rules compare with.
        extra: the data set's further columns.
        solution: a model answer for the supervised warm-up; None imitates the ground truth.
        prompt_ids: the finished prompt of a data set that was tokenised beforehand.
        system: a system prompt that a MindSpeed-RL template renders in a form of its own.
    """

    index: int
    data_source: str
    task: str
    messages: Messages
    ground_truth: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    solution: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    system: str | None = None
