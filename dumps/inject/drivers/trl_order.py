"""TRL's GRPOTrainer: its sampler gives the rows of a recorded order first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from typing import Any

from dumps.inject.drivers.fixed_order import FixedOrder
from dumps.inject.order_data import different, of_prompts, read_order_data
from dumps.inject.plan import ReplayPlan
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt, prompt_of, read_step, recorded_steps
from dumps.inject.replay import Replay

_BATCH = 1024  # prompts tokenized at once


def not_possible(plan: ReplayPlan, trainer: Any) -> Iterator[Problem]:
    """Yield settings with which an order cannot be set."""
    if not plan.sets_order:
        return
    if not hasattr(trainer.train_dataset, "__len__"):
        yield Problem("--order: this run streams its data set, which has no rows to choose from")
    if getattr(trainer, "environment_factories", None) is not None:
        yield Problem("--order: prompts that an environment makes are not in the data set")
    if not hasattr(trainer, "_tokenize_prompts"):
        yield Problem("--order: this version of TRL cannot say a prompt's ids beforehand")


def sampler(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return TRL's own sampler, whose first generations are the recorded ones.

    TRL draws a batch of prompts, gives each n times in a row, and the whole as often as it is
    trained on.
    """
    own = original(self, *args, **kwargs)
    if not replay.plan.sets_order:
        return own
    n, size, repeats = own.mini_repeat_count, own.batch_size, own.repeat_count
    positions: list[int] = []
    for number, step in _ordered(replay, self):
        if len(step) != size:
            replay.refuse(
                [
                    Problem(
                        f"--order: {len(step)} prompts are recorded, and this run asks for {size} "
                        "a generation",
                        number,
                    )
                ]
            )
        positions += [position for position in step for _ in range(n)] * repeats
    return FixedOrder(positions, size * n * repeats, own)


def _ordered(replay: Replay, trainer: Any) -> list[tuple[int, list[int]]]:
    """Return each recorded step's positions in the data set.

    Raises:
        ReplayRefused: A row is not in the data set, or the data set is another.
    """
    prompts = list(trainer.train_dataset["prompt"])
    data = read_order_data(replay.plan.folder)
    if data is not None:
        replay.refuse_unless_allowed(different(data, lambda: of_prompts(prompts)))
    read = [read_step(replay.plan.order, n) for n in recorded_steps(replay.plan.order)]
    steps = [(step.number, [prompt_of(record) for record in step.records]) for step in read]
    by_content: dict[Hashable, list[int]] = defaultdict(list)
    if any(prompt.ids is not None or prompt.text is not None for _, own in steps for prompt in own):
        for position, prompt in enumerate(_prompts(trainer, prompts)):
            by_content[prompt.ids].append(position)
            by_content[prompt.plain].append(position)
    found = []
    lost: list[Problem] = []
    for number, asked in steps:
        given: Counter[Hashable] = Counter()
        positions = []
        for prompt in asked:
            place = _place(prompt, by_content, given, len(prompts))
            if place is None:
                lost.append(Problem(f"--order: not in this data set: {prompt.shown}", number))
            else:
                positions.append(place)
        found.append((number, positions))
    if lost:
        replay.refuse(lost)
    return found


def _place(
    prompt: Prompt, by_content: dict[Hashable, list[int]], given: Counter[Hashable], num_rows: int
) -> int | None:
    """Return the row of a prompt; of several rows that ask it, each once."""
    if prompt.ids is None and prompt.text is None:
        row = prompt.dataset_index
        return row if row is not None and 0 <= row < num_rows else None
    key = prompt.ids if prompt.ids is not None else prompt.plain
    rows = by_content.get(key, [])
    given[key] += 1
    return rows[(given[key] - 1) % len(rows)] if rows else None


def _prompts(trainer: Any, prompts: list[Any]) -> Iterator[Prompt]:
    """Yield what the trainer makes of each row."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    for start in range(0, len(prompts), _BATCH):
        for ids in trainer._tokenize_prompts(prompts[start : start + _BATCH])[0]:
            own = tuple(map(int, ids))
            yield Prompt(own, str(tokenizer.decode(list(own), skip_special_tokens=True)))
