"""TRL's GRPOTrainer: generation gives recorded responses, each rank its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dumps.inject.match import place_rows
from dumps.inject.plan import Source
from dumps.inject.preflight import Candidate
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt
from dumps.inject.replay import Replay

Ids = tuple[int, ...]


def train(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare the record with the settings; prompts are compared as each step asks them."""
    settings, tokenizer = self.args, _tokenizer(self)
    every = settings.steps_per_generation * settings.num_iterations
    every = max(1, every // settings.gradient_accumulation_steps)
    last = settings.max_steps if settings.max_steps > 0 else max(replay.steps, default=0)
    eos = tokenizer.eos_token_id
    problems = [
        Problem(f"{option} is not possible with TRL")
        for option, is_asked in (
            ("--order", replay.plan.sets_order),
            ("--rewards recorded", replay.plan.rewards is Source.RECORDED),
        )
        if is_asked
    ]
    run = Candidate(
        num_samples=int(self.num_generations),
        max_response_length=int(self.max_completion_length),
        eos_ids=frozenset(() if eos is None else (int(eos),)),
        asks_log_probs=bool(self.use_vllm),
    )
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
    rows = range(start, start + len(own))
    made = (
        original(self, prompt_ids, *args, **kwargs)
        if any(groups[row // n] is None for row in rows)
        else None
    )
    completions: list[list[int]] = []
    log_probs: list[list[float]] = []
    for i, row in enumerate(rows):
        group = groups[row // n]
        if group is None:
            assert made is not None
            completions.append(list(made[0][i]))
            log_probs.append(list(made[1][i]) if made[1] is not None else [])
        else:
            record = replay.record(step, group, row % n)
            completions.append(list(record.response_ids or ()))
            log_probs.append(list(record.log_probs or ()))
    return completions, log_probs if _takes_log_probs(replay, self, made) else None


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
        lines = [(place, p, r, None) for place, p, r in zip(places, prompts, answers, strict=True)]
        replay.consumed(f"trl-{int(self.accelerator.process_index)}", step, lines)
    return output


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
