"""Row orders: against numbers recorded from the real frameworks, and a second implementation."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.data.row_order import RowOrder
from align.data.samplers.accelerate_seedable import AccelerateSeedable
from align.data.samplers.megatron import MegatronGPT
from align.data.samplers.mindspeed_rl import MindSpeedRL
from align.data.samplers.mindspeed_rl_old import MindSpeedRLOld
from align.data.samplers.sampler import Sampler
from align.data.samplers.sequential import Sequential
from align.data.samplers.torch_random import TorchRandom
from align.data.samplers.torchdata_random import TorchdataRandom
from align.data.samplers.trl_repeat import TrlRepeat
from align.data.torch_generator import UNSEEDED, TorchGenerator
from tests.unit.row_orders import (
    Twister,
    megatron_samples,
    mindspeed_rl_steps,
    permutation,
    verl_steps,
)

# torch 2.13.0, CPU: torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist(),
# then torch.empty((), dtype=torch.int64).random_(generator=…).item()
RECORDED = [
    (0, 10, [4, 1, 7, 5, 3, 9, 0, 8, 6, 2], 2279347887019741461),
    (1, 10, [5, 6, 1, 2, 0, 8, 9, 3, 7, 4], 4355072924162687120),
    (42, 12, [6, 8, 1, 7, 0, 2, 10, 11, 4, 3, 5, 9], 1844211772641153354),
    (1234, 9, [6, 4, 2, 8, 5, 1, 0, 3, 7], 5164642029029087921),
    (-1, 8, [3, 6, 4, 7, 2, 1, 5, 0], 4991960885293986265),
    (4294967301, 8, [3, 6, 0, 2, 1, 4, 5, 7], 8844199170576778248),
    (67280421310721, 12, [6, 5, 9, 10, 2, 3, 8, 11, 7, 0, 1, 4], 8826366141542338311),
    (7, 1, [0], 1407639518939636932),
    (7, 0, [], 1407639518939636932),
]


@pytest.mark.parametrize(("seed", "n", "rows", "drawn"), RECORDED)
def test_permutations_are_those_torch_gave(seed: int, n: int, rows: list[int], drawn: int) -> None:
    generator = TorchGenerator(seed)
    assert generator.randperm(n).tolist() == rows
    assert generator.draw_seed() == drawn


# (sampler, batch size, step, rows), recorded from the real loaders: MindSpeed-RL's PromptDataLoader
# on its own index, verl 0.9.1's create_rl_sampler (to 0.6: torch's RandomSampler) under torchdata
# 0.11's StatefulDataLoader, accelerate 1.15's SeedableRandomSampler, TRL 1.16's RepeatSampler.
LOADED: list[tuple[Sampler, int, int, list[int]]] = [
    (MindSpeedRL(23, 20, 1), 4, 1, [9, 4, 20, 11]),
    (MindSpeedRL(23, 20, 1), 4, 5, [8, 10, 17, 15]),
    (MindSpeedRL(23, 24, 1), 4, 1, [9, 15, 18, 21]),
    (MindSpeedRL(23, 24, 1), 4, 6, [15, 16, 1, 5]),
    (MindSpeedRL(23, 48, 1234), 4, 1, [6, 4, 11, 22]),
    (MindSpeedRL(23, 48, 1234), 4, 12, [7, 7, 1, 19]),
    (MindSpeedRL(64, 24, 42), 8, 1, [38, 24, 48, 63, 10, 29, 36, 51]),
    (MindSpeedRL(64, 24, 42), 8, 3, [7, 47, 35, 4, 41, 32, 5, 57]),
    (MindSpeedRLOld(23, 24, 1234), 4, 1, [7, 13, 2, 3]),
    (MindSpeedRLOld(23, 24, 1234), 4, 6, [6, 19, 15, 22]),
    (MindSpeedRLOld(64, 72, 42), 8, 1, [52, 58, 0, 44, 5, 36, 16, 12]),
    (MindSpeedRLOld(64, 72, 42), 8, 9, [26, 37, 54, 55, 44, 57, 63, 51]),
    (TorchdataRandom(64, 42, 0), 8, 1, [38, 24, 48, 63, 10, 29, 36, 51]),
    (TorchdataRandom(64, 42, 0), 8, 9, [8, 55, 19, 61, 44, 39, 57, 5]),
    (TorchdataRandom(64, 42, 0), 8, 24, [61, 10, 54, 37, 19, 24, 21, 9]),
    (TorchdataRandom(64, 42, 2), 8, 1, [8, 55, 19, 61, 44, 39, 57, 5]),
    (TorchdataRandom(64, 42, 2), 8, 9, [13, 37, 10, 23, 14, 7, 27, 54]),
    (TorchdataRandom(64, 42, 2), 8, 24, [10, 36, 59, 48, 14, 18, 6, 42]),
    (TorchdataRandom(61, 67280421310721, 0), 8, 1, [49, 45, 24, 55, 7, 2, 3, 21]),
    (TorchdataRandom(61, 67280421310721, 0), 8, 8, [57, 31, 43, 10, 58, 54, 39, 38]),
    (TorchdataRandom(61, 67280421310721, 0), 8, 21, [39, 25, 53, 36, 23, 11, 41, 57]),
    (TorchRandom(61, 1), 8, 1, [59, 60, 47, 39, 41, 46, 22, 30]),
    (TorchRandom(61, 1), 8, 8, [37, 32, 43, 60, 39, 58, 14, 21]),
    (TorchRandom(61, 1), 8, 21, [1, 7, 55, 24, 15, 9, 16, 43]),
    (TorchRandom(64, 1), 8, 1, [37, 60, 10, 61, 47, 32, 31, 63]),
    (TorchRandom(64, 1), 8, 9, [3, 33, 16, 34, 13, 60, 5, 43]),
    (TorchRandom(64, 1), 8, 24, [8, 58, 61, 47, 54, 50, 19, 13]),
    (
        AccelerateSeedable(20, 42),
        20,
        1,
        [2, 14, 18, 15, 1, 10, 0, 4, 6, 11, 8, 3, 7, 17, 13, 12, 19, 5, 16, 9],
    ),
    (
        AccelerateSeedable(20, 42),
        20,
        2,
        [8, 16, 13, 19, 9, 10, 0, 17, 4, 14, 11, 12, 18, 6, 15, 7, 3, 1, 5, 2],
    ),
    (TrlRepeat(20, 42), 5, 1, [2, 14, 18, 15, 1]),
    (TrlRepeat(20, 42), 5, 5, [6, 14, 10, 8, 11]),
]


@pytest.mark.parametrize(("sampler", "batch_size", "step", "rows"), LOADED)
def test_steps_are_those_the_real_loaders_gave(
    sampler: Sampler, batch_size: int, step: int, rows: list[int]
) -> None:
    assert RowOrder(sampler, batch_size).step(step).tolist() == rows


def test_the_first_values_of_a_permutation_are_the_whole_ones_and_leave_the_same_state() -> None:
    for stop in (0, 1, 8, 99, 100, 101):
        whole, part = TorchGenerator(7), TorchGenerator(7)
        assert part.randperm(100, stop).tolist() == whole.randperm(100).tolist()[:stop]
        assert part.draw_seed() == whole.draw_seed()


def test_skipping_permutations_is_drawing_them() -> None:
    drawn, skipped = TorchGenerator(3), TorchGenerator(3)
    for _ in range(5):
        drawn.randperm(77)
    skipped.skip_permutations(77, 5)
    assert skipped.randperm(77).tolist() == drawn.randperm(77).tolist()


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 1500))
def test_permutations_are_those_of_a_second_implementation(seed: int, n: int) -> None:
    assert TorchGenerator(seed).randperm(n).tolist() == permutation(Twister(seed), n)


@given(
    n=st.integers(2, 90),
    batch=st.integers(1, 20),
    seed=st.integers(0, 2**40),
    workers=st.sampled_from([0, 1, 8]),
    torchdata=st.booleans(),
)
def test_verls_steps_are_those_of_a_second_implementation(
    n: int, batch: int, seed: int, workers: int, torchdata: bool
) -> None:
    sampler = TorchdataRandom(n, seed, workers) if torchdata else TorchRandom(n, seed)
    order = RowOrder(sampler, batch)
    expected = verl_steps(n, batch, seed, 3, workers=workers, torchdata=torchdata)
    assert [order.step(k).tolist() for k in range(1, len(expected) + 1)] == expected
    assert [order.peek(k).tolist() for k in range(1, len(expected) + 1)] == expected


@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    iters=st.integers(1, 12),
)
def test_mindspeed_rls_steps_are_those_of_a_second_implementation(
    n: int, batch: int, seed: int, iters: int
) -> None:
    order = RowOrder(MindSpeedRL(n, iters * batch, seed), batch)
    expected = mindspeed_rl_steps(n, batch, seed, iters)
    assert [order.step(k).tolist() for k in range(1, len(expected) + 1)] == expected
    assert len(expected) >= iters


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(lambda x: sum(x) > 1),
    sequence_length=st.integers(1, 25),
    num_samples=st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
    extra=st.booleans(),
)
def test_megatrons_samples_are_those_of_a_second_implementation(
    lengths: list[int], sequence_length: int, num_samples: int, seed: int, extra: bool
) -> None:
    data = MegatronGPT(tuple(lengths), sequence_length, num_samples, seed, extra)
    expected = megatron_samples(lengths, sequence_length, num_samples, seed, extra)
    found = [data.documents(draw) for draw in range(data.epoch_length)]
    # walked token by token a sample has no document of which it takes nothing
    taken = [[d for d in sample if lengths[d]] for sample in found]
    if extra:
        assert taken == expected
    assert data.epoch(0).tolist() == [sample[0] for sample in found]
    assert len(found) == len(expected) >= num_samples


@pytest.mark.parametrize(
    ("num_samples", "seed", "first", "last", "count"),
    [
        (12, 1234, [[3], [9, 1], [5, 6, 3], [3], [3]], [5, 1], 23),
        (30, 7, [[5], [6, 9, 2, 7], [3], [8, 6], [3]], [5], 35),
    ],
)
def test_megatrons_samples_are_those_it_gave(
    num_samples: int, seed: int, first: list[list[int]], last: list[int], count: int
) -> None:
    """Recorded from the GPTDataset of megatron-core 0.12.1, of these documents."""
    data = MegatronGPT((5, 17, 3, 64, 1, 30, 9, 12, 40, 7), 16, num_samples, seed)
    assert [data.documents(draw) for draw in range(5)] == first
    assert data.documents(count - 1) == last and data.epoch_length == count


def test_train_iters_changes_mindspeed_rls_order_only_through_the_number_of_repeats() -> None:
    five, fifteen, sixteen = (
        RowOrder(MindSpeedRL(64, iters * 4, 1), 4).step(1).tolist() for iters in (5, 16, 17)
    )
    assert five == fifteen != sixteen


def test_the_first_epoch_of_the_old_era_does_not_depend_on_train_iters() -> None:
    # numpy's legacy generator is stable by policy: RandomState(1234).shuffle(arange(23))
    expected = np.arange(23)
    np.random.RandomState(1234).shuffle(expected)
    for iters in (5, 50):
        rows = MindSpeedRLOld(23, iters * 4, 1234).epoch(0)
        assert rows[:23].tolist() == expected.tolist()


def test_verl_and_mindspeed_rl_agree_when_one_pass_is_enough() -> None:
    verl = RowOrder(TorchdataRandom(64, 42, num_workers=0), 8)
    theirs = RowOrder(MindSpeedRL(64, 8 * 8, 42), 8)
    assert all((verl.step(k) == theirs.step(k)).all() for k in range(1, 9))
    with_workers = RowOrder(TorchdataRandom(64, 42, num_workers=8), 8)
    assert (with_workers.step(1) != theirs.step(1)).any()


def test_a_resumed_torch_sampler_replays_its_first_epoch() -> None:
    order = RowOrder(TorchRandom(64, 42), 8)
    resumed = RowOrder(TorchRandom(64, 42), 8, resumed_at=11)  # three steps into epoch 1
    assert all((resumed.step(k) == order.step(k)).all() for k in range(1, 12))
    assert all((resumed.step(k) == order.step(k - 8)).all() for k in range(12, 30))


SAMPLERS: list[Sampler] = [
    Sequential(37),
    TorchRandom(37, 5),
    TorchdataRandom(37, 5, 4),
    MindSpeedRL(37, 80, 5),
    MindSpeedRL(37, 80, 5, shuffle=False),
    MindSpeedRLOld(37, 80, 5),
    AccelerateSeedable(37, 5),
    TrlRepeat(37, 5),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.name)
def test_every_epoch_holds_every_row_equally_often(sampler: Sampler) -> None:
    for number in range(3):
        rows = sampler.epoch(number)
        assert len(rows) == sampler.epoch_length
        counts = Counter(rows.tolist())
        assert sorted(counts) == list(range(37)) and len(set(counts.values())) == 1
        assert sampler.epoch(number, 9).tolist() == rows[:9].tolist()


def test_rows_kept_by_a_filter_are_renumbered_for_the_sampler() -> None:
    kept = (3, 5, 8, 13, 21, 34)
    plain = RowOrder(TorchdataRandom(6, 1, 0), 3)
    filtered = RowOrder(TorchdataRandom(6, 1, 0), 3, kept=kept)
    for step in (1, 2, 3):
        assert filtered.step(step).tolist() == [kept[row] for row in plain.step(step)]
        assert filtered.peek(step).tolist() == filtered.step(step).tolist()


@pytest.mark.parametrize("run", ["v091_v1_fsdp2", "v091_v0_fsdp2"])
def test_the_steps_of_real_runs_hold_the_predicted_rows(reference_runs: Path, run: str) -> None:
    table = pq.read_table(reference_runs / "tiny_model_tokenizer_data" / "train.parquet")
    questions = [prompt[0]["content"] for prompt in table.column("prompt").to_pylist()]
    order = RowOrder(TorchdataRandom(64, 42, num_workers=0), 8)
    for step in (1, 2, 3):
        text = (reference_runs / run / "rollout" / f"{step}.jsonl").read_text("utf-8")
        seen = Counter(
            json.loads(line)["input"].split("\n")[1] for line in text.splitlines() if line
        )
        assert seen == Counter(questions[row] for row in order.step(step) for _ in range(4))


def test_an_unseeded_generator_is_a_constant() -> None:
    assert TorchdataRandom(64).seed == TrlRepeat(64).seed == UNSEEDED == 67280421310721
