"""verl's prompts as its trainer process can tell them, and those of the steps to come."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dumps.inject.drivers.fixed_order import FixedOrder
from dumps.inject.recorded import Prompt

KNOWN_SAMPLERS = ("RandomSampler", "SequentialSampler", "FixedOrder")


@dataclass(frozen=True, slots=True)
class Templating:
    """How a run turns a data set row into a prompt.

    Args:
        tokenizer: of transformers.
        options: of its chat template.
        limit: prompt length, beyond which verl cuts from the left.
    """

    tokenizer: Any
    options: Mapping[str, Any]
    limit: int | None

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        """Return what a row asks, templated; older versions of verl bring the ids along."""
        ids = row.get("raw_prompt_ids")
        if ids is None:
            ids = self.tokenizer.apply_chat_template(
                _messages(row["raw_prompt"]),
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **self.options,
            )
        plain = [int(i) for i in ids]
        cut = plain if self.limit is None else plain[-self.limit :]
        text = self.tokenizer.decode(cut, skip_special_tokens=True)
        index = row.get("index")
        return Prompt(tuple(cut), str(text), None if index is None else int(index))


def templating(tokenizer: Any, data_config: Any) -> Templating:
    """Return how a run with these settings of ``data`` makes prompts."""
    options = dict(data_config.get("apply_chat_template_kwargs") or {})
    limit = data_config.get("max_prompt_length")
    return Templating(tokenizer, options, None if limit is None else int(limit))


def upcoming(
    loader: Any, makes: Templating, num_prompts: int, num_steps: int
) -> list[list[Prompt]]:
    """Return the prompts of the next steps, drawn from copies: the loader itself does not move.

    Args:
        loader: verl's train_dataloader.
        num_prompts: of a step.

    Returns:
        A list a step; empty where the sampler is not one that can be copied.
    """
    if type(loader.sampler).__name__ not in KNOWN_SAMPLERS:
        return []
    drawn = _positions(loader, num_prompts * num_steps)
    dataset = loader.dataset
    rows = [makes.prompt(dataset[position]) for position in drawn]
    return [rows[i : i + num_prompts] for i in range(0, len(rows), num_prompts)]


class _Numbers:
    """A data set of positions, for a loader that gives the order alone."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> int:
        return int(position)


def _positions(loader: Any, count: int) -> list[int]:
    import torch

    state = torch.get_rng_state()  # a loader's iterator draws a seed
    twin = type(loader)(
        dataset=_Numbers(len(loader.dataset)),
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        drop_last=True,
        collate_fn=list,
        sampler=_copied(loader.sampler),
    )
    drawn: list[int] = []
    try:
        while len(drawn) < count and len(twin):
            for batch in twin:
                drawn += batch
                if len(drawn) >= count:
                    break
    finally:
        torch.set_rng_state(state)
    return drawn[:count]


def _copied(sampler: Any) -> Any:
    twin = copy.copy(sampler)
    if isinstance(sampler, FixedOrder):
        twin.rest = _copied(sampler.rest)
    generator = getattr(sampler, "generator", None)
    if generator is not None:
        twin.generator = generator.clone_state()
    return twin


def _messages(raw: Any) -> list[dict[str, Any]]:
    return [dict(message) for message in raw]
