"""Replay a run's sampler: from its settings and the number of rows to the rows of every step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.errors import ConfigError
from align.core.text import Text
from align.data import order_settings as names
from align.data.order_settings import FIELDS, OrderSettings
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
from align.data.torch_generator import Int64


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows there are, and which of them are left for the sampler.

    Args:
        num_rows: of the data set, before any selection.
        num_kept: rows the run itself counted after its length filter, None where it did not say.
        lengths: prompt lengths in tokens [num_rows], where the data set holds ids.
    """

    num_rows: int
    num_kept: int | None = None
    lengths: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A row order, and what it takes for granted."""

    order: RowOrder
    settings: OrderSettings
    assumptions: tuple[Text, ...] = ()


def predict(
    settings: OrderSettings, rows: Rows, index: tuple[int, ...] | None = None
) -> Prediction:
    """Replay the sampler of one run.

    Args:
        index: MindSpeed-RL's cached ``*_shuffle_idx.npy``, where the run read one.

    Raises:
        ConfigError: A setting it needs is not known, or the order is random by nature.
    """
    if settings.own_sampler is not None:
        raise _unknown("own_sampler", f"is {settings.own_sampler}, a class of the run's own")
    batch_size = settings.batch_size
    if not batch_size or batch_size < 1:
        raise _unknown("batch_size", "is not known")
    kept, assumptions = _kept(settings, rows)
    kept = _trained_on(settings, rows.num_rows, kept)
    num_rows = rows.num_rows if kept is None else len(kept)
    if settings.sampler == names.MEGATRON and settings.shuffle is not False:
        sampler: Sampler = _megatron(settings, rows, batch_size, kept)
    else:
        sampler = _sampler(settings, num_rows, batch_size, index)
    order = RowOrder(sampler, batch_size, None if kept is None else tuple(kept.tolist()))
    if not order.steps_per_epoch:
        raise ConfigError(
            where=FIELDS["batch_size"],
            problem=f"is {batch_size}, more than the {sampler.epoch_length} rows there are",
            fix="give the data set the run was trained on",
        )
    return Prediction(order, settings, (*settings.assumptions, *assumptions))


def _sampler(
    settings: OrderSettings, num_rows: int, batch_size: int, index: tuple[int, ...] | None
) -> Sampler:
    name, shuffle = settings.sampler, settings.shuffle
    if name is None:
        raise ConfigError(
            where="the run's configuration",
            problem="does not tell the framework, and thereby the sampler",
            fix=f"pass --sampler ({', '.join(names.SAMPLERS)}), or state it with `align run init`",
        )
    if shuffle is None and name in (names.TORCHDATA, names.TORCH, names.MINDSPEED_RL):
        raise _unknown("shuffle", "is not known")
    if name == names.SEQUENTIAL or (shuffle is False and name != names.MINDSPEED_RL):
        return Sequential(num_rows)
    if settings.seed is None:
        raise _unknown("seed", "is not known")
    seed = settings.seed
    if name in (names.MINDSPEED_RL, names.MINDSPEED_RL_OLD):
        if settings.total_steps is None:
            raise _unknown("total_steps", "is not known, and sets how often the rows are repeated")
        num_samples = settings.total_steps * batch_size
        if name == names.MINDSPEED_RL_OLD:
            return MindSpeedRLOld(num_rows, num_samples, seed)
        return MindSpeedRL(num_rows, num_samples, seed, shuffle is not False, index)
    if name == names.TORCHDATA:
        if settings.num_workers is None:
            raise _unknown("num_workers", "is not known")
        return TorchdataRandom(num_rows, seed, settings.num_workers)
    if name == names.TORCH:
        return TorchRandom(num_rows, seed)
    return TrlRepeat(num_rows, seed) if name == names.TRL else AccelerateSeedable(num_rows, seed)


def _megatron(
    settings: OrderSettings, rows: Rows, batch_size: int, kept: Int64 | None
) -> MegatronGPT:
    for name in ("seed", "total_steps", "sequence_length"):
        if getattr(settings, name) is None:
            raise _unknown(name, "is not known")
    if rows.lengths is None:
        raise ConfigError(
            where="the data set",
            problem="does not tell how many tokens each document has, and Megatron cuts samples "
            "by tokens",
            fix="give its .idx with --data",
        )
    lengths = rows.lengths if kept is None else tuple(rows.lengths[row] for row in kept.tolist())
    assert settings.seed is not None and settings.total_steps is not None
    assert settings.sequence_length is not None
    num_samples = settings.total_steps * batch_size
    return MegatronGPT(lengths, settings.sequence_length, num_samples, settings.seed)


def _trained_on(settings: OrderSettings, num_rows: int, kept: Int64 | None) -> Int64 | None:
    """Leave out what Megatron's ``split`` keeps for validation and test."""
    megatrons = (names.MINDSPEED_RL, names.MINDSPEED_RL_OLD, names.MEGATRON)
    if settings.split is None or settings.sampler not in megatrons:
        return kept
    num_kept = num_rows if kept is None else len(kept)
    count = num_trained_on(settings.split, num_kept)
    if count is None:
        raise _unknown("split", f"is {settings.split!r}, which is no list of shares")
    if count == num_kept:
        return kept
    return np.arange(count, dtype=np.int64) if kept is None else kept[:count]


def num_trained_on(split: str, num_rows: int) -> int | None:
    """Return how many rows, from the first on, are training data; None for what is no split.

    Source: MindSpeed-RL `get_train_valid_test_split_`, which gives what rounding leaves over to
    the training data.
    """
    try:
        shares = [float(share) for share in split.replace("/", ",").split(",")][:3]
    except ValueError:
        return None
    if sum(shares) <= 0:
        return None
    counts = [round(share / sum(shares) * num_rows) for share in shares]
    return counts[0] - (sum(counts) - num_rows)


def _kept(settings: OrderSettings, rows: Rows) -> tuple[Int64 | None, list[Text]]:
    """Return the rows left after selection and length filter, None for all of them."""
    kept = _selected(settings, rows.num_rows)
    limit, rule = settings.max_prompt_length, settings.length_filter
    if rule is None or not settings.filters_length:
        return kept, []
    if rows.lengths is not None and limit is not None:
        if kept is None:
            kept = np.arange(rows.num_rows, dtype=np.int64)
        kept = kept[within(rows.lengths, rule, limit)[kept]]
        if rows.num_kept not in (None, len(kept)):
            raise ConfigError(
                where=FIELDS["length_filter"],
                problem=f"({rule}, limit {limit}) keeps {len(kept)} rows as the tokenizer at hand "
                f"counts, and the run's log says {rows.num_kept}",
                fix="give the tokenizer and the data set the run was trained with",
            )
        return kept, []
    num_before = rows.num_rows if kept is None else len(kept)
    if rows.num_kept == num_before:
        return kept, []
    if rows.num_kept is not None:
        raise ConfigError(
            where=FIELDS["length_filter"],
            problem=f"({rule}) kept {rows.num_kept} of {num_before} rows, as the run's log says; "
            "which ones follows from the tokenizer",
            fix="give the filtered data set with --data",
        )
    text = Text(
        f"no prompt is dropped by the length filter ({rule}, limit {limit}): the run's log, which "
        "counts the rows kept, was not given",
        f"假定长度过滤（{rule}，上限 {limit}）没有丢弃任何 prompt：未提供记录保留行数的运行日志",
    )
    return kept, [text]


def within(lengths: tuple[int, ...], rule: str, limit: int) -> npt.NDArray[np.bool_]:
    """Tell which prompts a length filter keeps [n]: up to the limit, or only below it.

    Args:
        lengths: in tokens [n].
        rule: "length <= max_prompt_length" or "length < max_prompt_length".
    """
    counts = np.array(lengths, np.int64)
    return counts <= limit if "<=" in rule else counts < limit


def _selected(settings: OrderSettings, num_rows: int) -> Int64 | None:
    """Choose train_max_samples rows as verl's `RLHFDataset` does, None for all."""
    size = settings.max_samples
    if size is None or not 0 < size < num_rows:
        return None
    if not settings.shuffle:
        return np.arange(size)
    if settings.seed_is_null or settings.seed is None:
        raise _unknown(
            "max_samples", f"is {size} and data.seed is null: the rows are chosen at random"
        )
    return np.random.default_rng(settings.seed).choice(num_rows, size=size, replace=False)


def _unknown(name: str, problem: str) -> ConfigError:
    return ConfigError(
        where=FIELDS[name],
        problem=problem,
        fix="give the run's whole configuration, or the log that prints it",
    )
