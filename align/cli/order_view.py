"""Show a predicted row order as text, as a JSON document or as an order file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from align.core.errors import ConfigError
from align.core.text import Text
from align.data.order_file import order_lines
from align.data.replay import Prediction
from align.data.run_order import RunOrder
from align.data.samplers.balance_batch import split_over_ranks
from dumps.readers.row_hashes import brief_hashes, data_set_hash, hashed_content, row_hashes

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class StepOrder:
    """The rows of one step, and what they were predicted from."""

    run: str
    step: int  # counted over the whole run, from 1
    epoch: int
    place: int  # among the steps of its epoch, from 1
    rows: tuple[int, ...]
    num_rows: int
    data_set: str | None
    prediction: Prediction
    ranks: tuple[tuple[int, ...], ...] = ()  # rows of each data-parallel rank, before balancing

    @classmethod
    def of(
        cls, run: str, found: RunOrder, step: int, epoch: int | None, num_ranks: int | None
    ) -> StepOrder:
        """Predict a step.

        Raises:
            ConfigError: Something is lacking for it, the epoch has fewer steps, or the rows cannot
                be split equally.
        """
        prediction, data_set = found.prediction, found.data_set
        order, rows = prediction.order, found.rows
        assert rows is not None
        if epoch is not None and step > order.steps_per_epoch:
            raise ConfigError(
                where="--step",
                problem=f"is {step}, and an epoch has {order.steps_per_epoch} steps",
                fix="leave --epoch out to count over the whole run",
            )
        if epoch is not None:
            step += epoch * order.steps_per_epoch
        at = order.place(step)
        drawn = tuple(order.step(step).tolist())
        return cls(
            run=run,
            step=step,
            epoch=at[0],
            place=at[1] + 1,
            rows=drawn,
            num_rows=rows.num_rows,
            data_set=data_set.source if data_set else None,
            prediction=prediction,
            ranks=_split(drawn, num_ranks) if num_ranks is not None else (),
        )


def _split(rows: tuple[int, ...], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(map(tuple, split_over_ranks(rows, num_ranks)))
    except ValueError as error:
        raise ConfigError(
            where="--ranks",
            problem=str(error),
            fix="give a number of ranks that divides the batch",
        ) from error


def as_document(shown: StepOrder) -> dict[str, Any]:
    """Return the versioned JSON document of ``align data order``."""
    order, settings = shown.prediction.order, shown.prediction.settings
    return {
        "schema_version": SCHEMA_VERSION,
        "run": shown.run,
        "step": shown.step,
        "epoch": shown.epoch,
        "step_in_epoch": shown.place,
        "steps_per_epoch": order.steps_per_epoch,
        "rows": list(shown.rows),
        **({"ranks": [list(rank) for rank in shown.ranks]} if shown.ranks else {}),
        "batch_size": order.batch_size,
        "num_rows": shown.num_rows,
        "data_set": shown.data_set,
        "sampler": order.sampler.name,
        "seed": settings.seed,
        "num_workers": settings.num_workers,
        "assumptions": [text.en for text in shown.prediction.assumptions],
    }


def as_text(shown: StepOrder, lang: str) -> str:
    """Return what a terminal shows."""
    order, settings = shown.prediction.order, shown.prediction.settings
    head = Text(
        f"step {shown.step} (epoch {shown.epoch}, step {shown.place} of {order.steps_per_epoch}): "
        f"{len(shown.rows)} of {shown.num_rows} rows, {order.sampler.name}, seed {settings.seed}",
        f"第 {shown.step} 步（epoch {shown.epoch}，第 {shown.place}/{order.steps_per_epoch} 步）："
        f"共 {shown.num_rows} 行中的 {len(shown.rows)} 行，{order.sampler.name}，"
        f"seed {settings.seed}",
    )
    lines = [head.in_language(lang), " ".join(map(str, shown.rows))]
    lines += [f"  rank {rank}: {' '.join(map(str, rows))}" for rank, rows in enumerate(shown.ranks)]
    lines += [f"  {text.in_language(lang)}" for text in shown.prediction.assumptions]
    return "\n".join(lines)


def file_lines(found: RunOrder, shown: StepOrder) -> Iterator[str]:
    """Yield the order file: every step from 1 to the one shown."""
    order, settings = shown.prediction.order, shown.prediction.settings
    rows = None if found.data_set is None else row_hashes(found.data_set)
    header = {
        "sampler": order.sampler.name,
        "seed": settings.seed,
        "batch_size": order.batch_size,
        "num_rows": shown.num_rows,
        "data_set": shown.data_set,
        "data_set_hash": None if rows is None else data_set_hash(rows),
        "row_hashes": None if rows is None else brief_hashes(rows),
        "hashed": None if found.data_set is None else hashed_content(found.data_set),
    }
    return order_lines(order, 1, shown.step, header)
