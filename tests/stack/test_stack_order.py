"""Row order against torch's and torchdata's own loaders and against recorded runs of verl."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
pytest.importorskip("transformers", reason="the bundled stack needs torch and transformers")

import torch
from torch.utils.data import DataLoader, RandomSampler

from align.core.errors import ConfigError
from align.data.row_order import RowOrder
from align.data.samplers.torch_random import TorchRandom
from align.data.samplers.torchdata_random import TorchdataRandom
from align.stack.config import load_config
from align.stack.dataset import load_rows
from align.stack.order import UNSEEDED, mindspeed_rl_order, row_order, verl_order


def _collate(rows: list[int]) -> list[int]:
    return rows


def _first(order, count: int) -> list[list[int]]:
    return list(islice(order, count))


@pytest.mark.parametrize("num_rows", [64, 61])
@pytest.mark.parametrize("seed", [1, 42])
def test_the_torch_order_is_that_of_a_data_loader_with_random_sampler(num_rows, seed) -> None:
    rows: Any = range(num_rows)
    generator = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(rows, generator=generator)
    loader: Any = DataLoader(rows, 8, sampler=sampler, drop_last=True, collate_fn=_collate)
    want = [batch for _ in range(3) for batch in loader]
    got = _first(verl_order(num_rows, 8, seed=seed, sampler="torch"), len(want))
    assert got == want


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_rows", [64, 61])
@pytest.mark.parametrize("seed", [None, 42])
def test_the_torchdata_order_is_that_of_a_stateful_loader(num_rows, seed, num_workers) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
    from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulSampler

    generator = torch.Generator()
    if seed is not None:
        generator.manual_seed(seed)
    loader = stateful.StatefulDataLoader(
        range(num_rows),
        8,
        sampler=StatefulSampler(range(num_rows), generator=generator),
        num_workers=num_workers,
        drop_last=True,
        collate_fn=_collate,
    )
    want = [batch for _ in range(3) for batch in loader]
    order = verl_order(num_rows, 8, seed=seed, num_workers=num_workers)
    assert _first(order, len(want)) == want


def test_a_real_loader_of_verl_with_workers_gave_this_first_batch() -> None:
    """Printed by verl 0.9.1's own sampler and loader: 64 rows, batch 8, seed 42, 8 workers."""
    first = next(verl_order(64, 8, seed=42, num_workers=8))
    assert first == [8, 55, 19, 61, 44, 39, 57, 5]
    assert next(verl_order(64, 8, seed=42, num_workers=0)) != first


@pytest.mark.parametrize("run", ["v091_v1_fsdp2", "v091_v0_fsdp2"])
def test_the_prompts_of_a_recorded_run_are_those_of_the_predicted_rows(reference_runs, run) -> None:
    parquet = reference_runs / "tiny_model_tokenizer_data" / "train.parquet"
    settings = [
        f"data.train_files={parquet}",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "data.dataloader_num_workers=0",
        "data.seed=42",
    ]
    config = load_config(None, settings)
    rows = load_rows(config)
    for step, positions in enumerate(_first(row_order(config, len(rows)), 3), start=1):
        text = (reference_runs / run / "rollout" / f"{step}.jsonl").read_text(encoding="utf-8")
        asked = [json.loads(line)["input"].split("\n")[1] for line in text.splitlines()]
        want = [rows[i].messages[0]["content"] for i in positions for _ in range(4)]
        assert Counter(asked) == Counter(want)


@pytest.mark.parametrize("num_workers", [0, 8])
def test_the_orders_drawn_are_those_the_toolkit_predicts_without_torch(num_workers) -> None:
    predicted = {
        "torchdata": RowOrder(TorchdataRandom(61, 7, num_workers), 8),
        "torch": RowOrder(TorchRandom(61, 7), 8),
    }
    for name, order in predicted.items():
        drawn = verl_order(61, 8, seed=7, num_workers=num_workers, sampler=name)
        steps = range(1, 3 * order.steps_per_epoch + 1)
        assert _first(drawn, len(steps)) == [order.step(step).tolist() for step in steps]


def test_seed_null_is_the_constant_seed_of_an_untouched_generator() -> None:
    assert torch.Generator().initial_seed() == UNSEEDED
    assert _first(verl_order(20, 5, seed=None), 4) == _first(verl_order(20, 5, seed=UNSEEDED), 4)


def test_without_shuffling_rows_come_in_order_and_the_rest_is_dropped() -> None:
    assert _first(verl_order(7, 3, seed=1, shuffle=False), 3) == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]


def test_mindspeed_rl_equals_verl_within_one_epoch_and_tiles_beyond() -> None:
    """Rows of step k are randperm(E·N, seed)[k·B:(k+1)·B] % N."""
    assert list(mindspeed_rl_order(23, 4, 5, 1)) == _first(verl_order(23, 4, seed=1), 5)
    drawn = torch.randperm(46, generator=torch.Generator().manual_seed(1)) % 23
    tiled = list(mindspeed_rl_order(23, 4, 6, 1))
    assert tiled == drawn[:44].view(11, 4).tolist()


def test_the_configuration_chooses_the_sampler() -> None:
    settings = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    orders = {
        name: next(row_order(load_config(None, [*settings, *extra]), 23))
        for name, extra in {
            "plain": [],
            "workers": ["data.dataloader_num_workers=8"],
            "seed": ["data.seed=7"],
        }.items()
    }
    assert len({tuple(rows) for rows in orders.values()}) == 3
    torch_config = load_config(None, [*settings, "stack.data.sampler=torch"])
    plain, old = (
        _first(row_order(load_config(None, settings), 8), 4),
        _first(row_order(torch_config, 8), 4),
    )
    assert plain[:2] == old[:2] and plain[2:] != old[2:]  # the spare permutation shows after


def test_fewer_rows_than_a_batch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train_batch_size: is 16, and 3 rows"):
        row_order(load_config(None, ["data.train_batch_size=16"]), 3)
