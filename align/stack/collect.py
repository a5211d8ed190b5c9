"""One step's responses with their scores: generate, score and, for DAPO, draw again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from align.objective.advantages import group_by_uid
from align.objective.dapo import has_signal
from align.stack import sharding

if TYPE_CHECKING:
    from align.stack.config import StackConfig
    from align.stack.dataset import Row
    from align.stack.pipeline import Pipeline
    from align.stack.rewards import Scores
    from align.stack.rollout import Response
    from align.stack.setup import Setup


@dataclass(frozen=True)
class Collected:
    """Responses to the prompts of one step, n a prompt in adjacent rows.

    Args:
        rows: the data set's row of every response.
        order: positions among the kept rows that the step consumed.
    """

    responses: Sequence[Response]
    scores: Sequence[Scores]
    rows: Sequence[Row]
    order: Sequence[int]


def collect(setup: Setup, config: StackConfig, pipeline: Pipeline, step: int) -> Collected:
    """Generate a batch; with filter_groups drop groups whose scores agree and draw further prompts.

    Where max_num_gen_batches draws leave fewer than a batch, the step trains on what there is;
    where nothing is left, on the last draw, whose advantages are 0. verl stops there instead.
    """
    groups = config.algorithm.filter_groups
    wanted = config.data.train_batch_size * config.rollout.n
    kept = drawn = _draw(setup, config, pipeline, step)
    if not groups.enable:
        return drawn
    kept = _with_signal(drawn)
    for _ in range(groups.max_num_gen_batches - 1):
        if len(kept.responses) >= wanted:
            break
        drawn = _draw(setup, config, pipeline, step)
        kept = _joined(kept, _with_signal(drawn), drawn.order)
    num_kept = sharding.even(min(wanted, len(kept.responses)), config.rollout.n)
    return (
        _rows(kept, range(num_kept), kept.order) if num_kept else replace(drawn, order=kept.order)
    )


def _draw(setup: Setup, config: StackConfig, pipeline: Pipeline, step: int) -> Collected:
    positions = next(setup.order)
    setup.num_consumed += 1
    repeated = [p for p in positions for _ in range(config.rollout.n)]
    own = [setup.prompts[p] for p in sharding.own_block(positions) for _ in range(config.rollout.n)]
    responses = sharding.gather_list(
        pipeline.generate(setup.rollout_model, setup.tokenizer, own, config, step)
    )
    rows = [setup.rows[p] for p in repeated]
    rules = config.stack.reward.rules
    score = partial(pipeline.score, names=rules) if rules else pipeline.score
    scores = [score(row, response.text) for row, response in zip(rows, responses, strict=True)]
    return Collected(responses, scores, rows, positions)


def _with_signal(drawn: Collected) -> Collected:
    totals = torch.tensor([score.total for score in drawn.scores], dtype=torch.float64)
    kept = has_signal(totals, group_by_uid([row.index for row in drawn.rows]))
    return _rows(drawn, kept.nonzero().squeeze(-1).tolist(), drawn.order)


def _rows(drawn: Collected, rows: Sequence[int], order: Sequence[int]) -> Collected:
    return Collected(
        [drawn.responses[i] for i in rows],
        [drawn.scores[i] for i in rows],
        [drawn.rows[i] for i in rows],
        order,
    )


def _joined(first: Collected, second: Collected, drawn: Sequence[int]) -> Collected:
    return Collected(
        [*first.responses, *second.responses],
        [*first.scores, *second.scores],
        [*first.rows, *second.rows],
        [*first.order, *drawn],
    )
