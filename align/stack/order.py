"""Which rows each training step sees, exactly as the frameworks' samplers draw them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from align.core.errors import ConfigError

if TYPE_CHECKING:
    from align.stack.config import StackConfig

UNSEEDED = 67280421310721  # torch.Generator().initial_seed(), which verl's seed null leaves


def row_order(config: StackConfig, num_rows: int) -> Iterator[list[int]]:
    """Yield the positions of every step's rows among the rows kept, epoch after epoch.

    ``stack.data.sampler`` says whose order it is: torchdata (verl since 0.7), torch (verl up to
    0.6) or mindspeed_rl (since 2025-05-16). The first two never end.

    Raises:
        ConfigError: There are fewer rows than a step takes.
    """
    data, sampler = config.data, config.stack.data.sampler
    if num_rows < data.train_batch_size:
        raise ConfigError(
            where="data.train_files",
            key="data.train_batch_size",
            problem=f"is {data.train_batch_size}, and {num_rows} rows are kept",
            fix="give more rows, or a smaller batch",
        )
    if sampler == "mindspeed_rl":
        steps = config.trainer.total_training_steps
        return mindspeed_rl_order(num_rows, data.train_batch_size, steps, data.seed)
    return verl_order(
        num_rows,
        data.train_batch_size,
        seed=data.seed,
        shuffle=data.shuffle,
        num_workers=data.dataloader_num_workers,
        sampler=sampler,
    )


def verl_order(
    num_rows: int,
    batch_size: int,
    *,
    seed: int | None,
    shuffle: bool = True,
    num_workers: int = 0,
    sampler: str = "torchdata",
) -> Iterator[list[int]]:
    """Yield verl's batches without end; the rows left over at the end of an epoch are dropped.

    One generator runs on from epoch to epoch. torchdata's loader with workers makes its sampler's
    iterator twice, so that one permutation is drawn and discarded before every epoch; torch's
    RandomSampler draws a spare permutation after every epoch.

    Source: verl `create_rl_sampler`; torchdata 0.11 `StatefulDataLoader`; torch `RandomSampler`.
    """
    generator = torch.Generator()
    generator.manual_seed(UNSEEDED if seed is None else seed)

    def draw() -> list[int]:
        return torch.randperm(num_rows, generator=generator).tolist()

    while True:
        if not shuffle:
            permutation = list(range(num_rows))
        elif sampler == "torch":
            permutation = draw()
            draw()
        else:
            if num_workers > 0:
                draw()
            permutation = draw()
        yield from _batches(permutation, batch_size)


def mindspeed_rl_order(
    num_rows: int, batch_size: int, train_iters: int, seed: int | None
) -> Iterator[list[int]]:
    """Yield MindSpeed-RL's batches: one permutation over as many epochs as train_iters needs.

    Source: MindSpeed-RL since 12fdd5e (2025-05-16), whose index is never shuffled (no_shuffle).
    """
    num_epochs = -(-train_iters * batch_size // num_rows)
    generator = torch.Generator().manual_seed(UNSEEDED if seed is None else seed)
    permutation = torch.randperm(num_epochs * num_rows, generator=generator) % num_rows
    yield from _batches(permutation.tolist(), batch_size)


def _batches(rows: list[int], batch_size: int) -> Iterator[list[int]]:
    for start in range(0, len(rows) - batch_size + 1, batch_size):
        yield rows[start : start + batch_size]
