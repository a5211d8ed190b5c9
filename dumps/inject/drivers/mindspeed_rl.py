"""MindSpeed-RL's hybrid actor worker: its rollout engine gives recorded responses.

What is put into the dock is made by the worker's own code, which cuts responses at the first pad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dumps.capture.taps.mindspeed_rl import puts_rows
from dumps.inject.match import place_rows
from dumps.inject.plan import Source
from dumps.inject.preflight import Candidate
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt
from dumps.inject.replay import Replay


@dataclass
class _Worker:
    """This process while it generates."""

    step: int
    num_samples: int
    pad: int
    tokenizer: Any


_now: list[_Worker] = []
_checked: list[bool] = []


def worker(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Note the step; before the first, compare the record with the settings."""
    tokenizer, settings = self.tokenizer, self.rl_config
    if not _checked:
        _checked.append(True)
        _check(replay, self)
    pad = int(tokenizer.pad if tokenizer.pad else tokenizer.eod)  # as the worker itself has it
    step = int(self.iteration) + 1  # args.iteration stays where training began
    _now[:] = [_Worker(step, int(settings.n_samples_per_prompt), pad, tokenizer)]
    return original(self, *args, **kwargs)


def generate(
    replay: Replay,
    original: Any,
    self: Any,
    prompts_list: Any,
    indexes: Any = None,
    async_engine: bool = False,
    **kwargs: Any,
) -> Any:
    """Give the responses: padded to the right, or for the asynchronous engine one by one."""
    (now,) = _now
    asked = [tuple(map(int, ids)) for ids in prompts_list]
    if async_engine:
        return _one_by_one(replay, now, asked, [int(index) for index in indexes])
    groups = _groups(replay, now, asked)
    rows = [_ids(replay, now, group, i) for group in groups for i in range(now.num_samples)]
    width = max(map(len, rows))
    return torch.tensor([row + [now.pad] * (width - len(row)) for row in rows])


def consumed(
    replay: Replay, original: Any, self: Any, output: Any, index: Any, *args: Any, **kwargs: Any
) -> Any:
    """Write down the responses on their way into the dock; other output has none."""
    if _now and {"responses", "input_ids"} <= set(output):
        (now,) = _now
        answers = [row.tolist() for row in output["responses"]]
        wholes = [row.tolist() for row in output["input_ids"]]
        prompts = [w[: len(w) - len(a)] for w, a in zip(wholes, answers, strict=True)]
        rows = [(_prompt(now, p), a) for p, a in zip(prompts, answers, strict=True)]
        recorded = replay.step(now.step)
        places = [None] * len(rows) if recorded is None else place_rows(recorded, rows)
        lines = [(place, p, a, None) for place, p, a in zip(places, prompts, answers, strict=True)]
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if puts_rows(self, bool(args[0]) if args else bool(kwargs.get("use_vllm"))):
            replay.consumed(f"actor-{rank}", now.step, lines)
    return original(self, output, index, *args, **kwargs)


def _check(replay: Replay, worker: Any) -> None:
    settings, tokenizer = worker.rl_config, worker.tokenizer
    problems = [
        Problem(text)
        for text, is_so in (
            (
                "guarantee_order is false: rows are handed out at random, so no two runs train on "
                "them in one order; set rl_config.guarantee_order: true",
                not getattr(settings, "guarantee_order", False),
            ),
            ("partial_rollout_max_split: parts of responses cannot be replayed", _is_split(worker)),
            ("--order is not possible with MindSpeed-RL", replay.plan.sets_order),
            (
                "--rewards recorded is not possible with MindSpeed-RL",
                replay.plan.rewards is Source.RECORDED,
            ),
            (
                "--allow-missing is not possible with MindSpeed-RL",
                replay.plan.allows_missing,
            ),
        )
        if is_so
    ]
    generation = getattr(worker, "generate_config", None)
    limit = getattr(generation, "sampling_config", {}).get("max_tokens")
    run = Candidate(
        num_samples=int(settings.n_samples_per_prompt),
        max_response_length=None if limit is None else int(limit),
        eos_ids=frozenset({int(tokenizer.eod)}),
    )
    first, last = int(worker.iteration) + 1, int(worker.megatron_config.train_iters)
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    replay.check(run, range(first, last + 1), {}, inner, problems)


def _is_split(worker: Any) -> bool:
    return bool(getattr(worker, "enable_partial_rollout", False))


def _prompt(now: _Worker, ids: Sequence[int]) -> Prompt:
    inner = getattr(now.tokenizer, "tokenizer", now.tokenizer)
    decode = getattr(inner, "decode", None)
    return Prompt(tuple(ids), None if decode is None else str(decode(list(ids), True)))


def _groups(replay: Replay, now: _Worker, asked: Sequence[tuple[int, ...]]) -> list[int]:
    given = replay.give(now.step, [_prompt(now, ids) for ids in asked])
    assert None not in given  # nothing is allowed to be missing here
    return [group for group in given if group is not None]


def _ids(replay: Replay, now: _Worker, group: int, sample: int) -> list[int]:
    return list(replay.record(now.step, group, sample).response_ids or ())


def _one_by_one(
    replay: Replay, now: _Worker, asked: Sequence[tuple[int, ...]], indexes: Sequence[int]
) -> Iterator[Any]:
    """Yield ((prompts, responses, log_probs), rows of the dock) a response at a time."""
    prompts = {index // now.num_samples: ids for index, ids in zip(indexes, asked, strict=True)}
    groups = dict(zip(prompts, _groups(replay, now, list(prompts.values())), strict=True))
    for index, prompt in zip(indexes, asked, strict=True):
        group = groups[index // now.num_samples]
        ids = _ids(replay, now, group, index % now.num_samples)
        # no pad behind it, as the engine gives it: where pad is eos, the worker would keep one
        yield ([torch.tensor(prompt)], torch.tensor([ids]), None), [index]
