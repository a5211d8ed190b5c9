"""Prompts of coming steps are known without moving the loader, and an order can be given to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

pytest.importorskip("torchdata.stateful_dataloader", reason="verl's loader")

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from align.cli.main import cli
from align.core.rollout_record import RolloutRecord
from align.rollout.replayable import read_order
from dumps.inject.drivers.fixed_order import FixedOrder
from dumps.inject.drivers.verl_order import ordered_positions
from dumps.inject.drivers.verl_prompts import Templating, templating, upcoming
from dumps.inject.launch import prepare, prompts_in_order
from dumps.inject.plan import ReplayPlan
from dumps.inject.problem import ReplayRefused
from dumps.inject.replay import Replay
from tests.unit.data_files import write_indexed

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


QUESTIONS = [f"What is {number} + 1?" for number in range(12)]


class Whole:
    """A data set as verl's trainer has it, nothing filtered."""

    prompt_key = "prompt"

    def __init__(self, path: Path) -> None:
        self.data_files = [str(path)]

    def __len__(self) -> int:
        return len(QUESTIONS)


def on_disk(path: Path, questions: list[str]) -> Whole:
    """Write a data set of verl's."""
    chats = [[{"role": "user", "content": question}] for question in questions]
    pq.write_table(pa.table({"prompt": chats}), path)
    return Whole(path)


def ordered(tmp_path: Path, data: list[str]) -> Replay:
    """Have `align data order` write the order of two steps of a run."""
    run = tmp_path / "run"
    run.mkdir()
    config = (
        "data: {train_batch_size: 3, shuffle: true, seed: 4}\nactor_rollout_ref: {rollout: {n: 2}}"
    )
    (run / "config.yaml").write_text(config)
    file = tmp_path / "order.jsonl"
    given = [option for path in data for option in ("--data", path)] or ["--num-rows", "12"]
    done = CliRunner().invoke(
        cli,
        f"data order {run} --step 2 --sampler torch --write {file}".split() + given,
    )
    assert done.exit_code == 0, done.output
    order = read_order(file)
    plan = ReplayPlan(tmp_path / "out", sets_order=True)
    prepare(plan, [], prompts_in_order(order.rows), None, order.data)
    return Replay(plan)


def test_an_order_file_fits_the_data_set_it_was_made_for(tmp_path: Path) -> None:
    own = on_disk(tmp_path / "own.parquet", QUESTIONS)
    on_disk(tmp_path / "theirs.parquet", [question + " " for question in QUESTIONS])
    replay = ordered(tmp_path, [str(tmp_path / "theirs.parquet")])
    assert len(set(ordered_positions(replay, own, MAKES))) == 2 * BATCH


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (QUESTIONS[1:], "11 rows there, 12 here, and row 0 is the first that differs"),
        (QUESTIONS[:9], "9 rows there, 12 here, and the first 9 are the same"),
        (
            [*QUESTIONS[:7], QUESTIONS[8], QUESTIONS[7], *QUESTIONS[9:]],
            r"12 rows there, 12 here, and row 7 is the first that differs \(here 'What is 7 \+ 1",
        ),
    ],
)
def test_an_order_file_of_another_data_set_is_refused(
    tmp_path: Path, theirs: list[str], named: str
) -> None:
    own = on_disk(tmp_path / "own.parquet", QUESTIONS)
    on_disk(tmp_path / "theirs.parquet", theirs)
    replay = ordered(tmp_path, [str(tmp_path / "theirs.parquet")])
    with pytest.raises(ReplayRefused, match=rf"made for another data set \(.*\): {named}"):
        ordered_positions(replay, own, MAKES)


def test_without_a_data_set_at_hand_the_rows_are_counted(tmp_path: Path) -> None:
    replay = ordered(tmp_path, [])
    assert ordered_positions(replay, on_disk(tmp_path / "a.parquet", QUESTIONS), MAKES)
    with pytest.raises(ReplayRefused, match="12 rows there, 11 here"):
        ordered_positions(replay, on_disk(tmp_path / "b.parquet", QUESTIONS[:-1]), MAKES)


def test_a_data_set_that_cannot_be_compared_is_refused_with_the_way_out(tmp_path: Path) -> None:
    on_disk(tmp_path / "theirs.parquet", QUESTIONS)
    replay = ordered(tmp_path, [str(tmp_path / "theirs.parquet")])
    with pytest.raises(
        ReplayRefused, match=r"Rows: names no files.*give the recorded run to --ord"
    ):
        ordered_positions(replay, Rows(), MAKES)
    own = Whole(write_indexed(tmp_path))
    with pytest.raises(ReplayRefused, match="holds text and this run's data set ids"):
        ordered_positions(replay, own, MAKES)
