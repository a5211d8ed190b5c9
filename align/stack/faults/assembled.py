"""Change what the trainer is given, after or before it is padded into one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from align.stack.batch import TrainBatch
    from align.stack.config import StackConfig
    from align.stack.pipeline import Pipeline, Tokenizer
    from align.stack.rewards import Scores
    from align.stack.rollout import Response


def with_batch(pipeline: Pipeline, edit: Callable[[TrainBatch, Tokenizer], TrainBatch]) -> Pipeline:
    """Edit the assembled batch; the rollout dump keeps what was generated."""

    def assemble(
        responses: Sequence[Response],
        scores: Sequence[Scores],
        tokenizer: Tokenizer,
        config: StackConfig,
    ) -> TrainBatch:
        return edit(pipeline.assemble(responses, scores, tokenizer, config), tokenizer)

    return replace(pipeline, assemble=assemble)


def with_responses(
    pipeline: Pipeline, edit: Callable[[Response, Tokenizer, StackConfig], Response]
) -> Pipeline:
    """Edit every response on its way to the trainer; the rollout dump keeps what was generated."""

    def assemble(
        responses: Sequence[Response],
        scores: Sequence[Scores],
        tokenizer: Tokenizer,
        config: StackConfig,
    ) -> TrainBatch:
        edited = [edit(response, tokenizer, config) for response in responses]
        return pipeline.assemble(edited, scores, tokenizer, config)

    return replace(pipeline, assemble=assemble)
