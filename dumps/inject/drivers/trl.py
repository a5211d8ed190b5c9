"""TRL's GRPOTrainer: generation gives recorded responses, each rank its own rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from align.core.rollout_record import RolloutRecord
from dumps.inject.drivers.trl_order import not_possible
from dumps.inject.match import place_rows
from dumps.inject.plan import Source
from dumps.inject.preflight import Candidate
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt, read_step
from dumps.inject.replay import Replay

Ids = tuple[int, ...]


@dataclass
class _Generation:
    """The generation in progress.

    Args:
        records: of every rank's rows; None for a row that was generated.
        start: where this rank's rows begin.
        scores: of every rank's rows, empty until they are computed.
    """

    records: Sequence[RolloutRecord | None] = ()
    start: int = 0
    scores: Sequence[float] = ()


_now = _Generation()


def train(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare the record with the settings; prompts are compared as each step asks them."""
    settings, tokenizer = self.args, _tokenizer(self)
    every = settings.steps_per_generation * settings.num_iterations
    every = max(1, every // settings.gradient_accumulation_steps)
    last = settings.max_steps if settings.max_steps > 0 else max(replay.steps, default=0)
    eos = getattr(self, "eos_token_ids", None) or [tokenizer.eos_token_id]
    run = Candidate(
        num_samples=int(self.num_generations),
        max_response_length=int(self.max_completion_length),
        eos_ids=frozenset(int(i) for i in eos if i is not None),
        asks_log_probs=bool(self.use_vllm),
    )
    problems = [*not_possible(replay.plan, self), *_unknown_rewards(replay, self)]
    replay.check(run, range(1, last + 1, every), {}, tokenizer, problems)
    return original(self, *args, **kwargs)


def generate(
    replay: Replay, original: Any, self: Any, prompt_ids: Any, *args: Any, **kwargs: Any
) -> Any:
    """Return (completion ids, log_probs) of this rank's rows."""
    if not self.model.training:
        return original(self, prompt_ids, *args, **kwargs)
    step, n = int(self.state.global_step) + 1, int(self.num_generations)
    own = [tuple(map(int, ids)) for ids in prompt_ids]
    every, start = _gathered(self, own)
    asked = [Prompt(ids, _text(self, ids)) for ids in every[::n]]
    if any(every[i] != every[i // n * n] for i in range(len(every))):
        replay.refuse([Problem("prompts do not come n times in a row: not a GRPO batch", step)])
    groups = replay.give(step, asked)
    records = [
        None if group is None else replay.record(step, group, sample)
        for group in groups
        for sample in range(n)
    ]
    _now.records, _now.start, _now.scores = records, start, ()
    rows = records[start : start + len(own)]
    made = original(self, prompt_ids, *args, **kwargs) if None in rows else None
    completions: list[list[int]] = []
    log_probs: list[list[float]] = []
    for i, record in enumerate(rows):
        if record is None:
            assert made is not None
            completions.append(list(made[0][i]))
            log_probs.append(list(made[1][i]) if made[1] is not None else [])
        else:
            completions.append(list(record.response_ids or ()))
            log_probs.append(list(record.log_probs or ()))
    return completions, log_probs if _takes_log_probs(replay, self, made) else None


def rewards(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what each reward function gives each row of every rank: [rows, functions]."""
    computed = original(self, *args, **kwargs)
    if not self.model.training:
        return computed
    if replay.plan.rewards is Source.RECORDED:
        for row, record in enumerate(_now.records):
            if record is not None:
                computed[row] = computed.new_tensor(_values(self, record))
    weights = self.reward_weights.to(computed.device)
    _now.scores = (computed * weights[None]).nansum(dim=1).tolist()
    return computed


def consumed(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Write down what goes into training."""
    output = original(self, *args, **kwargs)
    if self.model.training:
        step = int(self.state.global_step) + 1
        prompts = _unpadded(output["prompt_ids"], output["prompt_mask"])
        answers = _unpadded(output["completion_ids"], output["completion_mask"])
        rows = [(Prompt(p, _text(self, p)), r) for p, r in zip(prompts, answers, strict=True)]
        recorded = replay.step(step)
        places = [None] * len(rows) if recorded is None else place_rows(recorded, rows)
        own = _now.scores[_now.start : _now.start + len(rows)]
        scores: Sequence[float | None] = own or [None] * len(rows)
        lines = list(zip(places, prompts, answers, scores, strict=True))
        replay.consumed(f"trl-{int(self.accelerator.process_index)}", step, lines)
    return output


def _values(trainer: Any, record: RolloutRecord) -> list[float]:
    """Return a recorded row's reward by function; NaN where one did not apply."""
    names = trainer.reward_func_names
    given = [record.extras.get(f"score/{name}") for name in names]
    if any(value is not None for value in given):
        return [float("nan") if value is None else float(value) for value in given]
    assert record.score is not None and len(names) == 1  # compared before step 1
    return [record.score / float(trainer.reward_weights[0])]


def _unknown_rewards(replay: Replay, trainer: Any) -> Iterator[Problem]:
    """Yield why recorded rewards cannot be told apart by reward function."""
    names = list(trainer.reward_func_names)
    if replay.plan.rewards is not Source.RECORDED or len(names) == 1:
        return
    keys = {f"score/{name}" for name in names}
    for number in replay.steps:
        lacking = [r for r in read_step(replay.plan.rows, number).records if not keys & {*r.extras}]
        if lacking:
            yield Problem(
                f"--rewards recorded: {len(lacking)} rows say only what all of a run's reward "
                f"functions gave, and this run weighs {len(names)} ({', '.join(names)})",
                number,
            )
            return


def _takes_log_probs(replay: Replay, trainer: Any, made: Any) -> bool:
    """Tell whether the engine's log_probs go along; without vLLM TRL has none."""
    if made is not None and made[1] is None:
        return False
    return bool(trainer.use_vllm) and replay.plan.log_probs is Source.RECORDED


def _gathered(trainer: Any, own: Sequence[Ids]) -> tuple[list[Ids], int]:
    """Return every rank's prompts, and where this rank's begin."""
    if trainer.accelerator.num_processes == 1:
        return list(own), 0
    from importlib import import_module

    every = import_module("accelerate.utils").gather_object(list(own))
    return [tuple(ids) for ids in every], int(trainer.accelerator.process_index) * len(own)


def _tokenizer(trainer: Any) -> Any:
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def _text(trainer: Any, ids: Ids) -> str:
    return str(_tokenizer(trainer).decode(list(ids), skip_special_tokens=True))


def _unpadded(ids: Any, mask: Any) -> list[Ids]:
    pairs = zip(ids.cpu(), (mask != 0).cpu(), strict=True)
    return [tuple(row[seen].tolist()) for row, seen in pairs]
