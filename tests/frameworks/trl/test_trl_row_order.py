"""Our row orders against TRL's and accelerate's own samplers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the order is checked against torch")
pytest.importorskip("accelerate.data_loader", reason="accelerate is not installed")

from accelerate.data_loader import SeedableRandomSampler

from align.data.row_order import RowOrder
from align.data.samplers.accelerate_seedable import AccelerateSeedable
from align.data.samplers.trl_repeat import TrlRepeat
from align.data.torch_generator import UNSEEDED


@pytest.mark.parametrize("num_rows", [7, 64, 61])
@pytest.mark.parametrize("seed", [0, 1, 42])
def test_every_epoch_is_accelerates_own(num_rows: int, seed: int) -> None:
    real = SeedableRandomSampler(range(num_rows), data_seed=seed)
    ours = AccelerateSeedable(num_rows, seed)
    for epoch in range(3):
        assert list(real) == ours.epoch(epoch).tolist()


@pytest.mark.parametrize("num_rows", [7, 64, 61])
@pytest.mark.parametrize("seed", [None, 1, 42])
@pytest.mark.parametrize(("batch", "n", "repeats"), [(3, 2, 4), (8, 4, 1)])
def test_every_generation_batch_is_trls_own(
    num_rows: int, seed: int | None, batch: int, n: int, repeats: int
) -> None:
    if batch > num_rows:
        pytest.skip("no whole batch")
    utils = pytest.importorskip("trl.trainer.utils", reason="TRL is not installed")
    real = utils.RepeatSampler(range(num_rows), n, batch, repeats, seed=seed)
    order = RowOrder(TrlRepeat(num_rows, UNSEEDED if seed is None else seed), batch)
    for epoch in range(2):
        rows = list(real)
        for place in range(order.steps_per_epoch):
            block = rows[place * batch * n * repeats :][: batch * n * repeats]
            expected = [row for row in order.batch(epoch, place).tolist() for _ in range(n)]
            assert block == expected * repeats
        assert len(rows) == order.steps_per_epoch * batch * n * repeats
