"""Find the setting under which a run's sampler gives the rows it was seen to train on.

First the run's own configuration, then a place in its order where it went on after a restart, then
one setting changed, then other seeds. What fits must fit every step seen, and be so unlikely by
chance that the number of settings tried does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from align.core.errors import ConfigError
from align.core.text import Text
from align.data import order_settings as names
from align.data.order_settings import OrderSettings
from align.data.replay import Rows, predict
from align.data.row_order import RowOrder
from align.data.torch_generator import UNSEEDED
from align.data.witness import Witness

# Seeds people set, tried even where the data set is too large to try many.
_COMMON_SEEDS = (0, 1, 42, 1234, UNSEEDED, 123, 2, 3, 100, 1024, 2023, 2024, 2025, 2026, 3407)
_MAX_SEED = 1000
_NUM_DRAWS = 20_000_000  # random numbers drawn for the search in all: a few seconds
_MAX_EPOCHS = 4
_MAX_PLACES = 20_000
# One in 10^6 by chance, and the number of settings tried beside it.
_DIGITS = 6.0 + 4.0


@dataclass(frozen=True, slots=True)
class OrderFit:
    """A row order that agrees with all that was seen of a run.

    Args:
        settings: what gives it.
        changed: how they differ from the run's configuration, None where they do not.
        moved: from which step on the run is at another place of the order, and where.
        first_step: first step that agrees, of ``num_steps`` that do.
    """

    order: RowOrder
    settings: OrderSettings
    first_step: int
    num_steps: int
    changed: Text | None = None
    moved: Text | None = None

    @property
    def as_configured(self) -> bool:
        """The run does what its configuration says."""
        return self.changed is None and self.moved is None


def find_order(settings: OrderSettings, rows: Rows, witness: Witness) -> OrderFit | None:
    """Search for an order that agrees with every step seen; None where nothing tried does."""
    if not witness.steps:
        return None
    own = _order(settings, rows)
    if own is not None:
        found = _fit(own, settings, witness) or _moved(own, settings, witness)
        if found is not None:
            return found
    for changed, what in _one_changed(settings):
        order = _order(changed, rows)
        found = None if order is None else _fit(order, changed, witness, what)
        if found is not None:
            return found
    return _stale_index(settings, rows, witness) or _other_seed(settings, rows, witness)


def _order(settings: OrderSettings, rows: Rows) -> RowOrder | None:
    try:
        return predict(settings, rows).order
    except ConfigError:
        return None


def _fit(
    order: RowOrder, settings: OrderSettings, witness: Witness, changed: Text | None = None
) -> OrderFit | None:
    steps = witness.steps
    if not witness.agrees(steps[0], order.peek(steps[0])):
        return None
    if not all(witness.agrees(step, order.step(step)) for step in steps[1:]):
        return None
    if changed is not None and not _unlikely(order, witness, len(steps)):
        return None
    return OrderFit(order, settings, steps[0], len(steps), changed)


def _moved(order: RowOrder, settings: OrderSettings, witness: Witness) -> OrderFit | None:
    """Find the place of the order at which the run goes on after the last step that fits."""
    steps = witness.steps
    rest = [s for s in steps if not witness.agrees(s, order.step(s))]
    # Everything from the first step that does not fit on must have moved together.
    if not rest:
        return None
    rest = [step for step in steps if step >= rest[0]]
    if not _unlikely(order, witness, len(rest)):
        return None
    places = min(_MAX_EPOCHS * order.steps_per_epoch, _MAX_PLACES)
    for place in range(1, places + 1):
        shift = place - rest[0]
        if shift and all(
            step + shift > 0 and witness.agrees(step, order.step(step + shift)) for step in rest
        ):
            return OrderFit(order, settings, steps[0], len(steps), moved=_at(rest[0], order, place))
    return None


def _at(step: int, order: RowOrder, place: int) -> Text:
    epoch, offset = order.place(place)
    return Text(
        f"steps {step}… replay epoch {epoch} from offset {offset}",
        f"从第 {step} 步起重放 epoch {epoch} 中从偏移 {offset} 开始的数据",
    )


def _one_changed(settings: OrderSettings) -> Iterator[tuple[OrderSettings, Text]]:
    """Yield the settings with one thing changed, the likeliest first."""
    if settings.sampler == names.TORCHDATA and settings.num_workers is not None:
        other = 0 if settings.num_workers else 1
        yield (
            replace(settings, num_workers=other),
            Text(
                f"{'no' if not other else 'some'} loader processes, not {settings.num_workers}",
                f"数据加载进程数{'为 0' if not other else '大于 0'}，而非 {settings.num_workers}",
            ),
        )
    if settings.shuffle is not False:
        yield (
            replace(settings, shuffle=False, sampler=names.SEQUENTIAL),
            Text("rows in file order, not shuffled", "按文件顺序，未打乱"),
        )
    for sampler in _LIKELY_SAMPLERS:
        if sampler != settings.sampler and not (
            sampler == names.TORCHDATA and settings.num_workers is None
        ):
            yield replace(settings, sampler=sampler, shuffle=True), _sampler_text(sampler)
    for num_repeats in range(1, 9):  # MindSpeed-RL's train_iters matters only through these
        if settings.sampler == names.MINDSPEED_RL and settings.total_steps and settings.batch_size:
            yield (
                replace(settings, total_steps=settings.total_steps * num_repeats),
                Text(
                    f"train_iters {settings.total_steps * num_repeats}, not {settings.total_steps}",
                    f"train_iters 为 {settings.total_steps * num_repeats}，"
                    f"而非 {settings.total_steps}",
                ),
            )


_LIKELY_SAMPLERS = (names.TORCH, names.TORCHDATA, names.MINDSPEED_RL, names.MINDSPEED_RL_OLD)
_SAMPLER_NAMES = {
    names.TORCH: Text("torch's sampler (verl up to 0.6)", "torch 的采样器（verl 0.6 及以前）"),
    names.TORCHDATA: Text(
        "torchdata's sampler (verl since 0.7)", "torchdata 的采样器（verl 0.7 起）"
    ),
    names.MINDSPEED_RL: Text(
        "MindSpeed-RL's sampler of since 2025-05", "MindSpeed-RL 2025-05 之后的采样器"
    ),
    names.MINDSPEED_RL_OLD: Text(
        "MindSpeed-RL's shuffle of before 2025-05, which a stale index file replays too",
        "MindSpeed-RL 2025-05 之前的打乱方式，遗留的索引缓存文件也会重放它",
    ),
    names.TRL: Text("TRL's RepeatSampler", "TRL 的 RepeatSampler"),
    names.ACCELERATE: Text("accelerate's seedable sampler", "accelerate 的可设种子采样器"),
    names.MEGATRON: Text("Megatron's GPT data set", "Megatron 的 GPT 数据集"),
    names.SEQUENTIAL: Text("file order", "文件顺序"),
}


def _stale_index(settings: OrderSettings, rows: Rows, witness: Witness) -> OrderFit | None:
    """Try an index file of before 2025-05 under MindSpeed-RL's loader of after it."""
    if settings.sampler != names.MINDSPEED_RL:
        return None
    old = _order(replace(settings, sampler=names.MINDSPEED_RL_OLD), rows)
    if old is None:
        return None
    order = predict(settings, rows, tuple(old.sampler.epoch(0).tolist())).order
    what = Text(
        "a stale *_shuffle_idx.npy of before 2025-05, which the loader shuffles once more",
        "2025-05 之前遗留的 *_shuffle_idx.npy 缓存，加载器又对它打乱了一次",
    )
    return _fit(order, settings, witness, what)


def _sampler_text(sampler: str) -> Text:
    return _SAMPLER_NAMES[sampler]


def _other_seed(settings: OrderSettings, rows: Rows, witness: Witness) -> OrderFit | None:
    num_seeds = max(len(_COMMON_SEEDS), min(_MAX_SEED, _NUM_DRAWS // max(1, rows.num_rows)))
    seeds = dict.fromkeys((*_COMMON_SEEDS, *range(num_seeds)))
    for seed in seeds:
        if seed == settings.seed:
            continue
        other = replace(settings, seed=seed)
        order = _order(other, rows)
        what = Text(
            f"seed {seed}, not {settings.seed}", f"实际 seed 为 {seed}，而非 {settings.seed}"
        )
        found = None if order is None else _fit(order, other, witness, what)
        if found is not None:
            return found
    return None


def _unlikely(order: RowOrder, witness: Witness, num_steps: int) -> bool:
    """Tell whether so many steps would hardly agree by chance under any setting tried."""
    digits = witness.digits(order.sampler.epoch_length, order.batch_size)
    return digits * num_steps >= _DIGITS
