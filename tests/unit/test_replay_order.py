"""Prompts of coming steps are known without moving the loader, and an order can be given to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchdata.stateful_dataloader", reason="verl's loader")

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from align.core.rollout_record import RolloutRecord
from dumps.inject.drivers.verl_order import ordered_positions
from dumps.inject.drivers.verl_prompts import FixedOrder, Templating, templating, upcoming
from dumps.inject.launch import prepare
from dumps.inject.plan import ReplayPlan
from dumps.inject.problem import ReplayRefused
from dumps.inject.replay import Replay

NUM_ROWS, BATCH = 10, 3


class Tokenizer:
    def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
        assert options["enable_thinking"] is False
        return [1, 2, int(messages[0]["content"])]

    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return f"ask {ids[-1]}"


class Rows:
    """A data set as verl's: a filter has left the rows 5 to 14 of the file."""

    dataframe = SimpleNamespace(
        _indices=SimpleNamespace(
            column=lambda _: SimpleNamespace(to_pylist=lambda: list(range(5, 5 + NUM_ROWS)))
        )
    )

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {"raw_prompt": [{"content": str(position)}], "index": 100 + position}


MAKES: Templating = templating(
    Tokenizer(), {"apply_chat_template_kwargs": {"enable_thinking": False}, "max_prompt_length": 2}
)


def loader(sampler: Any, num_workers: int = 0) -> Any:
    return StatefulDataLoader(
        dataset=Rows(),
        batch_size=BATCH,
        num_workers=num_workers,
        drop_last=True,
        collate_fn=lambda rows: [row["index"] - 100 for row in rows],
        sampler=sampler,
    )


def shuffled(seed: int = 4) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return RandomSampler(data_source=Rows(), generator=generator)


def steps(made: Any, count: int) -> list[list[int]]:
    """Return the batches of the next steps, epoch after epoch, as verl draws them."""
    drawn: list[list[int]] = []
    while len(drawn) < count:
        drawn += list(made)
    return drawn[:count]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_coming_prompts_are_those_that_the_loader_then_gives(num_workers: int) -> None:
    made = loader(shuffled(), num_workers)
    state = torch.get_rng_state()
    ahead = upcoming(made, MAKES, BATCH, 5)
    assert torch.equal(torch.get_rng_state(), state)
    indexes = [[prompt.dataset_index for prompt in step] for step in ahead]
    assert indexes == [[100 + row for row in step] for step in steps(made, 5)]
    assert steps(loader(shuffled(), num_workers), 5) == [[i - 100 for i in s] for s in indexes]  # type: ignore[operator]


def test_a_prompt_is_templated_and_cut_from_the_left_as_verl_does() -> None:
    prompt = MAKES.prompt(Rows()[7])
    assert (prompt.ids, prompt.text, prompt.dataset_index) == ((2, 7), "ask 7", 107)
    older = MAKES.prompt({"raw_prompt_ids": [4, 5, 6], "raw_prompt": None})
    assert (older.ids, older.dataset_index) == ((5, 6), None)


def test_a_sampler_of_ones_own_is_not_looked_ahead_at() -> None:
    class Own(list):
        """Any iterable can be a sampler."""

    assert upcoming(loader(Own(range(NUM_ROWS))), MAKES, BATCH, 2) == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_fixed_order_comes_first_and_then_the_runs_own(num_workers: int) -> None:
    recorded = [9, 8, 7, 0, 0, 1, 2, 3, 4, 6, 6, 6]
    made = loader(FixedOrder(recorded, BATCH, shuffled()), num_workers)
    assert [len(s) for s in upcoming(made, MAKES, BATCH, 6)] == [BATCH] * 6
    drawn = steps(made, 6)
    assert drawn[:4] == [[9, 8, 7], [0, 0, 1], [2, 3, 4], [6, 6, 6]]
    own = [row for step in steps(loader(shuffled()), 3) for row in step]
    assert drawn[4:] == [own[3:6], own[6:9]]


def order(tmp_path: Path, *records: RolloutRecord) -> Replay:
    plan = ReplayPlan(tmp_path, sets_order=True)
    prepare(plan, [], records, None)
    return Replay(plan)


def test_rows_of_an_order_are_found_by_content_or_by_their_number_in_the_file(
    tmp_path: Path,
) -> None:
    wanted = order(
        tmp_path,
        RolloutRecord(prompt_ids=(2, 7), step=1),
        RolloutRecord(prompt=" ask  3", step=1),
        RolloutRecord(dataset_index=5, step=2),
    )
    assert ordered_positions(wanted, Rows(), MAKES) == [7, 3, 0]


def test_a_row_of_an_order_that_is_not_there_is_named(tmp_path: Path) -> None:
    wanted = order(tmp_path, RolloutRecord(dataset_index=4, step=2))
    with pytest.raises(ReplayRefused, match="step 2: --order: not in this data set: data set row"):
        ordered_positions(wanted, Rows(), MAKES)
