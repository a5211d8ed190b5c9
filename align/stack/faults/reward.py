"""The same response gets another score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from align.core.rung import Rung
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from align.stack.batch import TrainBatch
    from align.stack.config import StackConfig
    from align.stack.dataset import Row
    from align.stack.pipeline import Pipeline, Tokenizer
    from align.stack.rewards import Scores
    from align.stack.rollout import Response


def zero_where_not_applicable(pipeline: Pipeline) -> Pipeline:
    """Let a rule give 0 to tasks it is not for, so that its mean follows the mix of tasks."""

    def score(row: Row, text: str) -> Scores:
        scores = pipeline.score(row, text)
        return replace(scores, by_rule={k: v or 0.0 for k, v in scores.by_rule.items()})

    return replace(pipeline, score=score)


def weak_extraction(pipeline: Pipeline) -> Pipeline:
    """Accept the right number anywhere in the response, also inside another number."""

    def score(row: Row, text: str) -> Scores:
        scores = pipeline.score(row, text)
        if row.ground_truth not in text:
            return scores
        by_rule = {k: None if v is None else 1.0 for k, v in scores.by_rule.items()}
        return replace(scores, total=sum(v or 0.0 for v in by_rule.values()), by_rule=by_rule)

    return replace(pipeline, score=score)


def permuted_scores(pipeline: Pipeline) -> Pipeline:
    """Give every response the score of the next one: the two columns are in another order."""

    def assemble(
        responses: Sequence[Response],
        scores: Sequence[Scores],
        tokenizer: Tokenizer,
        config: StackConfig,
    ) -> TrainBatch:
        moved = [*scores[1:], *scores[:1]]
        return pipeline.assemble(responses, moved, tokenizer, config)

    return replace(pipeline, assemble=assemble)


def _reward(
    name: str,
    what: str,
    field_report: str,
    finding_id: str,
    needs: tuple[str, ...],
    change: Callable[[Pipeline], Pipeline],
) -> Fault:
    return Fault(
        name, Rung.REWARD, what, field_report, f"reward.{finding_id}", needs, change=change
    )


FAULTS = (
    _reward(
        "zeros_averaged_in",
        "A rule gives 0 to responses of tasks it is not for, and they enter its mean.",
        "seed 000",
        "not_applicable_as_zero",
        ("rollouts", "metrics"),
        zero_where_not_applicable,
    ),
    _reward(
        "weak_extraction",
        "The answer counts wherever it appears in the response.",
        "report 38",
        "same_response_other_score",
        ("rollouts",),
        weak_extraction,
    ),
    _reward(
        "permuted_rewards",
        "The rewards reach the trainer in another order than the responses.",
        "verl #4232, report 68",
        "permuted",
        ("rollouts", "trainer_inputs"),
        permuted_scores,
    ),
)
