"""Our row orders against verl's own sampler under torchdata's loader, and against torch itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the order is checked against torch")
pytest.importorskip("verl.trainer.ppo.utils", reason="verl is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import AutoTokenizer
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from align.data.order_settings import OrderSettings
from align.data.replay import Rows, predict, within
from align.data.row_order import RowOrder
from align.data.samplers.balance_batch import balanced_order
from align.data.samplers.sequential import Sequential
from align.data.samplers.torch_random import TorchRandom
from align.data.samplers.torchdata_random import TorchdataRandom
from align.data.torch_generator import UNSEEDED, TorchGenerator
from dumps.readers.data_set import read_data_set
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tokenizer_check.data_prompts import DataPrompts, data_prompts

BATCH, EPOCHS = 8, 3
SEEDS = (None, 0, 1, 42, 2**40 + 7)


class Numbers(torch.utils.data.Dataset):
    """Row i is i, so that a batch says which rows it holds."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, row: int) -> int:
        return row


def real_loader(
    num_rows: int, seed: int | None, *, shuffle: bool = True, workers: int = 0, era: str = "new"
) -> StatefulDataLoader:
    data = Numbers(num_rows)
    if era == "new" or not shuffle:
        sampler = create_rl_sampler(OmegaConf.create({"shuffle": shuffle, "seed": seed}), data)
    else:  # verl up to 0.6: the same lines with torch's sampler
        generator = torch.Generator()
        if seed is not None:
            generator.manual_seed(seed)
        sampler = torch.utils.data.RandomSampler(data, generator=generator)
    return StatefulDataLoader(
        data, batch_size=BATCH, num_workers=workers, drop_last=True, sampler=sampler
    )


def predicted(
    num_rows: int,
    seed: int | None,
    *,
    shuffle: bool = True,
    workers: int = 0,
    era: str = "new",
    resumed_at: int | None = None,
) -> RowOrder:
    number = UNSEEDED if seed is None else seed
    if not shuffle:
        return RowOrder(Sequential(num_rows), BATCH)
    if era == "old":
        return RowOrder(TorchRandom(num_rows, number), BATCH, resumed_at=resumed_at)
    return RowOrder(TorchdataRandom(num_rows, number, workers), BATCH)


def steps(order: RowOrder, first: int, last: int) -> list[list[int]]:
    return [order.step(step).tolist() for step in range(first, last + 1)]


def batches(loader: StatefulDataLoader, epochs: int) -> Iterator[list[int]]:
    for _ in range(epochs):
        yield from (batch.tolist() for batch in loader)


@pytest.mark.parametrize("era", ["new", "old"])
@pytest.mark.parametrize("num_rows", [64, 61, 9])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_of_three_epochs_is_verls_own(
    era: str, num_rows: int, seed: int | None, shuffle: bool, workers: int
) -> None:
    if workers and (num_rows == 9 or seed not in (None, 42)):
        pytest.skip("worker processes are slow to start; two sizes and two seeds are enough")
    real = list(batches(real_loader(num_rows, seed, shuffle=shuffle, workers=workers, era=era), 3))
    order = predicted(num_rows, seed, shuffle=shuffle, workers=workers, era=era)
    assert real == steps(order, 1, len(real))
    assert len(real) == EPOCHS * (num_rows // BATCH)


def test_eight_workers_discard_one_permutation_as_two_do() -> None:
    real = list(batches(real_loader(64, 42, workers=8), 2))
    assert real == steps(predicted(64, 42, workers=8), 1, 16)
    assert real != steps(predicted(64, 42, workers=0), 1, 16)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("era", ["new", "old"])
@pytest.mark.parametrize("stop", [3, 8, 11, 16, 21])  # within and at the end of an epoch of 8 steps
def test_a_resumed_loader_goes_on_as_predicted(era: str, workers: int, stop: int) -> None:
    first = real_loader(64, 42, workers=workers, era=era)
    seen, state = 0, None
    while state is None:
        for _ in first:
            seen += 1
            if seen == stop:
                state = first.state_dict()
                break
    second = real_loader(64, 42, workers=workers, era=era)
    second.load_state_dict(state)
    # after a checkpoint at an epoch's end verl's loop makes one pass that gives no batch
    real = list(batches(second, 3))[: 16 - stop % 8]
    order = predicted(64, 42, workers=workers, era=era, resumed_at=stop)
    assert real == steps(order, stop + 1, stop + len(real))


@pytest.mark.parametrize("seed", [0, 1, 42, 1234, -1, 2**31, 2**32, 2**63 - 1, UNSEEDED])
@pytest.mark.parametrize("n", [0, 1, 2, 23, 623, 624, 625, 7473])
def test_permutations_and_seeds_are_torchs_own(seed: int, n: int) -> None:
    real, ours = torch.Generator().manual_seed(seed), TorchGenerator(seed)
    for _ in range(3):
        assert torch.randperm(n, generator=real).tolist() == ours.randperm(n).tolist()
        drawn = torch.empty((), dtype=torch.int64).random_(generator=real).item()
        assert drawn == ours.draw_seed()


def test_a_sampler_without_generator_draws_its_seed_from_the_global_one() -> None:
    torch.manual_seed(7)
    sampler = torch.utils.data.RandomSampler(Numbers(100))
    real = [list(sampler), list(sampler)]
    generator = TorchGenerator(7)
    seeds = [generator.draw_seed(), generator.draw_seed()]
    assert real == [TorchGenerator(seed).randperm(100).tolist() for seed in seeds]
    assert torch.Generator().initial_seed() == UNSEEDED


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("by_workload", [True, False])
def test_a_balanced_batch_is_ordered_as_verl_does(ranks: int, seed: int, by_workload: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, (8, 60, 4000)[seed % 3], (64,), generator=generator)  # with ties
    loads = calculate_workload(lengths) if by_workload else lengths
    real = []
    for part in get_seqlen_balanced_partitions(loads.tolist(), ranks, equal_size=True):
        if by_workload:  # as `_balance_batch` does it
            part = sorted(part, key=lambda row: (loads[row], row))
            part = part[::2] + part[1::2][::-1]
        real += part
    assert balanced_order(lengths.tolist(), ranks, by_workload=by_workload) == real


@pytest.mark.parametrize("seed", [0, 42])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [20, 63, 64, -1])
def test_the_rows_of_train_max_samples_are_verls_own(
    reference_runs: Path, seed: int, shuffle: bool, size: int, tmp_path: Path
) -> None:
    folder = reference_runs / "tiny_model_tokenizer_data"
    config = OmegaConf.create(
        {"shuffle": shuffle, "seed": seed, "filter_overlong_prompts": False}
        | {"max_prompt_length": 64, "cache_dir": str(tmp_path)}
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    path = str(folder / "train.parquet")
    real = create_rl_dataset(path, config, tokenizer, None, max_samples=size)
    indices = [row["index"] for row in real.dataframe["extra_info"]]
    settings = OrderSettings("torchdata", 8, seed, shuffle=shuffle, num_workers=0, max_samples=size)
    kept = predict(settings, Rows(64)).order.kept
    assert (list(range(64)) if kept is None else list(kept)) == indices


@pytest.mark.parametrize("limit", [20, 24, 25, 27, 40])
def test_the_rows_its_length_filter_keeps_are_verls_own(
    reference_runs: Path, limit: int, tmp_path: Path
) -> None:
    model = reference_runs / "tiny_model_tokenizer_data" / "model"
    questions = [f"What is {i} + {i}?" + " Count again." * (i % 4) for i in range(40)]
    path = tmp_path / "train.parquet"
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in questions]
    pq.write_table(pa.Table.from_pylist(rows), path)
    config = OmegaConf.create(
        {"filter_overlong_prompts": True, "max_prompt_length": limit, "cache_dir": str(tmp_path)}
        | {"filter_overlong_prompts_workers": 1}
    )
    real = create_rl_dataset(str(path), config, AutoTokenizer.from_pretrained(model), None)
    kept = [row[0]["content"] for row in real.dataframe["prompt"]]
    found = discover([model])
    versions = {"transformers": transformers.__version__}
    run = RunData(replace(found, manifest=replace(found.manifest, versions=versions)))
    prompts = data_prompts(run, {})
    assert isinstance(prompts, DataPrompts)
    lengths = prompts.lengths(read_data_set(path))
    assert lengths is not None and min(lengths) < 25 < max(lengths)
    ours = within(lengths, "length <= max_prompt_length", limit)
    assert kept == [text for text, is_kept in zip(questions, ours, strict=True) if is_kept]
