"""Our row orders against MindSpeed-RL's own index and loader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the order is checked against torch")

import torch

from align.data.order_settings import OrderSettings
from align.data.replay import Rows, num_trained_on, predict
from align.data.row_order import RowOrder
from align.data.samplers.mindspeed_rl import MindSpeedRL
from align.data.samplers.mindspeed_rl_old import MindSpeedRLOld
from dumps.readers.data_set import read_data_set
from tests.frameworks.mindspeed_rl.source import load
from tests.unit.data_files import write_indexed

utils, dataloader, indexed, build = load(
    "datasets.utils",
    "datasets.dataloader",
    "datasets.indexed_dataset",
    "datasets.build_dataset",
)


class Indexed(torch.utils.data.Dataset):
    def __init__(self, index) -> None:
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> dict[str, object]:
        return {"input_ids": [int(self.index[place])]}


def real_steps(
    folder: Path, num_rows: int, iters: int, batch: int, seed: int, *, index: bool, loader: bool
) -> list[list[int]]:
    """Build the index (shuffled by numpy or not) and read it (shuffled by the loader or not)."""
    places = utils._build_index_mappings(
        name="train",
        data_prefix=str(folder / "data"),
        start_index=0,
        nb_documents=num_rows,
        num_samples=iters * batch,
        seed=seed,
        full_shuffle_instruction_dataset=False,
        parallel_state=SimpleNamespace(),
        no_shuffle=not index,
    )
    read = dataloader.PromptDataLoader(Indexed(places), batch, 0, seed, [], not loader)
    return [[int(ids[0]) for ids in step["prompts"]] for step in read]


SETTINGS = [(23, 5, 4, 1), (23, 6, 4, 1), (23, 12, 4, 1234), (64, 3, 8, 42), (61, 40, 8, 1)]


@pytest.mark.parametrize(("num_rows", "iters", "batch", "seed"), SETTINGS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_step_of_the_new_era_is_its_own(
    tmp_path: Path, num_rows: int, iters: int, batch: int, seed: int, shuffle: bool
) -> None:
    real = real_steps(tmp_path, num_rows, iters, batch, seed, index=False, loader=shuffle)
    order = RowOrder(MindSpeedRL(num_rows, iters * batch, seed, shuffle), batch)
    assert real == [order.step(k).tolist() for k in range(1, order.steps_per_epoch + 1)]


@pytest.mark.parametrize(("num_rows", "iters", "batch", "seed"), SETTINGS)
def test_every_step_of_the_old_era_is_its_own(
    tmp_path: Path, num_rows: int, iters: int, batch: int, seed: int
) -> None:
    real = real_steps(tmp_path, num_rows, iters, batch, seed, index=True, loader=False)
    order = RowOrder(MindSpeedRLOld(num_rows, iters * batch, seed), batch)
    assert real == [order.step(k).tolist() for k in range(1, order.steps_per_epoch + 1)]


@pytest.mark.parametrize(("num_rows", "iters", "batch", "seed"), SETTINGS)
def test_a_stale_cache_is_read_as_it_is(
    tmp_path: Path, num_rows: int, iters: int, batch: int, seed: int
) -> None:
    real_steps(tmp_path, num_rows, iters, batch, seed, index=True, loader=False)
    real = real_steps(tmp_path, num_rows, iters, batch, seed, index=False, loader=True)
    (cache,) = tmp_path.glob("*_shuffle_idx.npy")
    index = tuple(np.load(cache).tolist())
    order = RowOrder(MindSpeedRL(num_rows, iters * batch, seed, index=index), batch)
    assert real == [order.step(k).tolist() for k in range(1, order.steps_per_epoch + 1)]
    assert index == tuple(MindSpeedRLOld(num_rows, iters * batch, seed).epoch(0).tolist())


@pytest.mark.parametrize("split", ["100,0,0", "99,1,0", "969,30,1", "1/1/1", "80", "0,1,0"])
@pytest.mark.parametrize("num_rows", [1, 23, 64, 100, 7473])
def test_the_share_of_training_data_is_its_own(split: str, num_rows: int) -> None:
    real = build.get_train_valid_test_split_(split, num_rows)
    assert num_trained_on(split, num_rows) == real[1]


@pytest.mark.parametrize("limit", [None, 2, 5, 8, 9])
def test_the_reader_and_the_length_filter_are_its_own(tmp_path: Path, limit: int | None) -> None:
    path = write_indexed(tmp_path)
    real = indexed.get_packed_indexed_dataset(str(tmp_path / "data"), filter_length=limit)
    data = read_data_set(path)
    rule = None if limit is None else "length < max_prompt_length"
    settings = OrderSettings("mindspeed_rl", 1, 1, total_steps=1, shuffle=False, length_filter=rule)
    lengths = tuple(len(ids) for ids in data.token_ids or ())
    settings = replace(settings, max_prompt_length=limit)
    kept = predict(settings, Rows(23, lengths=lengths)).order.kept if len(real) else ()
    rows = range(23) if kept is None else kept
    assert data.token_ids is not None
    assert [real[i]["input_ids"].tolist() for i in range(len(real))] == [
        data.token_ids[row].tolist() for row in rows
    ]
