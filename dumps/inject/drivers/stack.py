"""The bundled stack: the pipeline's rollout stage gives recorded responses."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from align.core.rollout_record import RolloutRecord
from dumps.inject.match import place_rows
from dumps.inject.order_data import different, of_files, read_order_data
from dumps.inject.plan import Source
from dumps.inject.preflight import Candidate
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt, prompt_of, read_step, recorded_steps
from dumps.inject.replay import Replay

NAME = "stack-0"
_checked: set[int] = set()


def step(
    replay: Replay,
    original: Any,
    setup: Any,
    config: Any,
    pipeline: Any,
    number: int,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a step whose responses are recorded ones; before the first, compare everything."""
    if id(setup) not in _checked:
        _checked.add(id(setup))
        if replay.plan.sets_order:
            _set_order(replay, setup, config, number)
        _check(replay, setup, config, number)
    stages = _Stages(replay, setup, pipeline)
    driven = replace(pipeline, generate=stages.generate)
    if replay.plan.rewards is Source.RECORDED:
        driven = replace(driven, score=stages.score)
    result = original(setup, config, driven, number, *args, **kwargs)
    if _rank_and_size()[0] != 0:  # every rank holds all rows, the first alone tells of them
        return result
    collected = result[0]
    responses = list(zip(collected.responses, collected.scores, strict=True))
    rows = [(_prompt(setup, r.row_index, r.prompt_ids), r.response_ids) for r, _ in responses]
    recorded = replay.step(number)
    places = [None] * len(rows) if recorded is None else place_rows(recorded, rows)
    lines = [
        (place, r.prompt_ids, r.response_ids, float(score.total))
        for place, (r, score) in zip(places, responses, strict=True)
    ]
    replay.consumed(NAME, number, lines)
    return result


class _Stages:
    """Stands for the stages of one step."""

    def __init__(self, replay: Replay, setup: Any, pipeline: Any) -> None:
        self._replay, self._setup, self._pipeline = replay, setup, pipeline
        self._scores: deque[RolloutRecord | None] = deque()

    def generate(
        self, model: Any, tokenizer: Any, prompts: Sequence[Any], config: Any, step: int
    ) -> list[Any]:
        """Give a response to every prompt, each repeated n times in adjacent rows."""
        n = config.rollout.n
        asked = [_prompt(self._setup, p.row_index, p.ids) for p in prompts[::n]]
        groups = self._replay.give(step, asked)
        lost = [i for i in range(len(prompts)) if groups[i // n] is None]
        made = iter(
            self._pipeline.generate(model, tokenizer, [prompts[i] for i in lost], config, step)
            if lost
            else ()
        )
        responses = []
        for i, prompt in enumerate(prompts):
            group = groups[i // n]
            record = None if group is None else self._replay.record(step, group, i % n)
            responses.append(next(made) if record is None else _response(prompt, record, tokenizer))
            self._scores.append(record)
        return responses

    def score(self, row: Any, text: str, **kwargs: Any) -> Any:
        """Give the recorded score of a response; responses are scored as they were generated."""
        record = self._scores.popleft()
        computed = self._pipeline.score(row, text, **kwargs)
        if record is None:
            return computed
        return replace(computed, total=record.score)


def _check(replay: Replay, setup: Any, config: Any, first: int) -> None:
    last, size = int(config.trainer.total_training_steps), int(config.data.train_batch_size)
    groups = config.algorithm.filter_groups
    hidden = []
    if groups.enable and not replay.plan.sets_order:
        text = (
            "algorithm.filter_groups draws prompts until enough groups have a signal, and only the "
            "groups that stayed are recorded; pass --order with the recorded run"
        )
        hidden = [Problem(text, is_missing=True)]
    if replay.plan.rewards is Source.RECORDED and _rank_and_size()[1] > 1:
        hidden.append(Problem("--rewards recorded works with one rank of the stack"))
    if replay.plan.log_probs is Source.RECOMPUTED:
        hidden.append(Problem("--log-probs recomputed: the stack always takes the engine's"))
    ahead = list(islice(setup.order, 0 if groups.enable else last - first + 1))
    setup.order = chain(ahead, setup.order)
    asked = {
        number: [_prompt(setup, None, setup.prompts[p].ids, p) for p in positions[:size]]
        for number, positions in enumerate(ahead, first)
    }
    run = Candidate(
        num_samples=config.rollout.n,
        max_prompt_length=config.data.max_prompt_length,
        max_response_length=config.data.max_response_length,
        eos_ids=_eos_ids(setup, config),
        asks_log_probs=True,
    )
    replay.check(run, range(first, last + 1), asked, setup.tokenizer, hidden)


def _set_order(replay: Replay, setup: Any, config: Any, first: int) -> None:
    """Have the recorded rows come in the recorded order; beyond it, as they would."""
    data = read_order_data(replay.plan.folder)
    if data is not None:
        files = [Path(file.strip()) for file in config.data.train_files.split(",")]
        replay.refuse_unless_allowed(different(data, lambda: of_files(files)))
    by_row = {row.index: position for position, row in enumerate(setup.rows)}
    steps = [read_step(replay.plan.order, n) for n in recorded_steps(replay.plan.order)]
    ordered: list[list[int]] = []
    lost: list[Problem] = []
    for step in steps:
        if step.number < first:
            continue
        found = []
        taken: Counter[Any] = Counter()
        for record in step.records:
            prompt = prompt_of(record)
            position = by_row.get(prompt.dataset_index)
            if prompt.ids is not None:
                same = [p for p, own in enumerate(setup.prompts) if own.ids == prompt.ids]
                if position not in same:
                    position = next(iter(same[taken[prompt.ids] :]), None)
                taken[prompt.ids] += 1
            if position is None:
                lost.append(Problem(f"--order: not in this data set: {prompt.shown}", step.number))
            else:
                found.append(position)
        ordered.append(found)
    if lost:
        replay.refuse(lost)
    setup.order = chain(ordered, islice(setup.order, len(ordered), None))


def _prompt(setup: Any, row_index: int | None, ids: Any, position: int | None = None) -> Prompt:
    index = setup.rows[position].index if position is not None else row_index
    text = setup.tokenizer.decode(list(ids), skip_special_tokens=True)
    return Prompt(tuple(ids), str(text), index)


def _response(prompt: Any, record: RolloutRecord, tokenizer: Any) -> Any:
    """Make the stack's own record of a response."""
    ids = tuple(record.response_ids or ())
    return sys.modules["align.stack.rollout"].Response(
        row_index=prompt.row_index,
        prompt_ids=tuple(prompt.ids),
        response_ids=ids,
        text=str(tokenizer.decode(list(ids), skip_special_tokens=True)),
        log_probs=tuple(record.log_probs or ()),
        finish_reason=record.finish_reason or "stop",
        prompt_token_ids=tuple(prompt.ids),
    )


def _rank_and_size() -> tuple[int, int]:
    from torch import distributed

    if not distributed.is_initialized():
        return 0, 1
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _eos_ids(setup: Any, config: Any) -> frozenset[int]:
    if config.rollout.ignore_eos:
        return frozenset()
    stops = sys.modules["align.stack.rollout"].stop_ids
    return frozenset(stops(setup.rollout_model, setup.tokenizer))
