"""Why two runs saw other rows: which setting makes one sampler's order the other's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from align.core.errors import ConfigError
from align.core.finding import Evidence, Side
from align.core.text import Text
from align.data.order_search import OrderFit, find_order
from align.data.order_settings import FIELDS, TORCHDATA, OrderSettings
from align.data.replay import Rows, predict
from align.data.row_order import RowOrder
from align.data.run_order import RunOrder
from align.data.witness import Witness

# Settings one by one, those that belong together as one; in the order in which they are named.
_GROUPS: tuple[tuple[str, ...], ...] = (
    ("seed", "seed_is_null"),
    ("num_workers",),
    ("shuffle",),
    ("sampler",),
    ("batch_size",),
    ("max_samples",),
    ("length_filter", "max_prompt_length"),
    ("total_steps",),
)
_LABELS = {
    "seed": Text("seed", "seed"),
    "num_workers": Text("loader processes", "数据加载进程数"),
    "shuffle": Text("shuffle", "shuffle"),
    "sampler": Text("sampler", "采样器"),
    "batch_size": Text("batch size", "batch 大小"),
    "max_samples": Text("train_max_samples", "train_max_samples"),
    "length_filter": Text("length filter", "长度过滤"),
    "max_prompt_length": Text("length limit of prompts", "prompt 长度上限"),
    "total_steps": Text("train_iters", "train_iters"),
    "rows": Text("rows of the data set", "数据集行数"),
}


@dataclass(frozen=True, slots=True)
class OrderCause:
    """Why the rows differ, in words, with the values it rests on."""

    what: Text
    evidence: tuple[Evidence, ...] = ()
    is_hint: bool = False  # says what it is not, so that anything better replaces it


def explain(
    reference: RunOrder,
    candidate: RunOrder,
    witnesses: tuple[Witness | None, Witness | None],
    step: int,
    num_common: int | None,
) -> OrderCause | None:
    """Say why the rows of a step differ, None where nothing that is known tells.

    Args:
        witnesses: what each side shows of its order, where its data set is at hand.
        step: first step whose rows differ.
        num_common: prompts both saw there; predicted orders must share as many rows. None where
            it is not known.
    """
    stale = _stale(reference, candidate)
    if stale is not None:
        return stale
    fits = [_find(run, w) for run, w in zip((reference, candidate), witnesses, strict=True)]
    odd = [(side, fit) for side, fit in zip(_SIDES, fits, strict=True) if _is_odd(fit)]
    if odd:
        return _deviation(odd)
    orders = [
        fit.order if fit is not None else _predicted(run)
        for run, fit in zip((reference, candidate), fits, strict=True)
    ]
    if orders[0] is None or orders[1] is None:
        return _counts_differ(reference, candidate)
    own, other = orders[0].step(step), orders[1].step(step)
    shared = len(np.intersect1d(own, other))
    if shared == len(own) == len(other):
        return _NOT_THE_SETTINGS
    if None in fits and num_common is not None and num_common != shared:
        return None
    return _settings_differ(reference, candidate, orders[1], step)


_SIDES = (Side.REFERENCE, Side.CANDIDATE)
_SIDE_NAMES = {
    Side.REFERENCE: Text("the reference", "参考"),
    Side.CANDIDATE: Text("the candidate", "被测"),
}


_NOT_THE_SETTINGS = OrderCause(
    Text(
        "the two configurations give the same rows at this step when their samplers are replayed: "
        "look for another data file, a stale index file, a restart or changed code",
        "重放两侧采样器，按配置该步的数据行应当相同：请检查数据文件、遗留的索引缓存、断点续训"
        "或改动过的代码",
    ),
    is_hint=True,
)


def _stale(reference: RunOrder, candidate: RunOrder) -> OrderCause | None:
    """Name an index file that one run reads though its configuration makes another order."""
    found = [(s, r) for s, r in zip(_SIDES, (reference, candidate), strict=True) if _has_stale(r)]
    if not found:
        return None
    names = [_SIDE_NAMES[side] for side, _ in found]
    return OrderCause(
        Text(
            f"{' and '.join(n.en for n in names)} replays a stale *_shuffle_idx.npy that lies "
            "beside its data",
            f"{'与'.join(n.zh for n in names)}重放了数据旁遗留的 *_shuffle_idx.npy 索引文件",
        ),
        tuple(Evidence(source=str(run.stale_index), side=side) for side, run in found),
    )


def _has_stale(run: RunOrder) -> bool:
    return run.prediction_or_none is not None and run.stale_index is not None


def _find(run: RunOrder, witness: Witness | None) -> OrderFit | None:
    if witness is None or run.rows is None:
        return None
    return find_order(run.settings, run.rows, witness)


def _is_odd(fit: OrderFit | None) -> bool:
    return fit is not None and not fit.as_configured


def _predicted(run: RunOrder) -> RowOrder | None:
    prediction = run.prediction_or_none
    return None if prediction is None else prediction.order


def _counts_differ(reference: RunOrder, candidate: RunOrder) -> OrderCause | None:
    """Blame the length filter where the logs count other numbers of rows left for the sampler."""
    counts = []
    for run in (reference, candidate):
        rows = run.rows
        counts.append(None if rows is None else rows.num_kept or rows.num_rows)
    if None in counts or counts[0] == counts[1]:
        return None
    evidence = [
        Evidence(
            source=run.counted.source if run.counted else run.settings.sampler or "rows",
            side=side,
            key="rows kept",
            values=(count,),
        )
        for run, side, count in zip((reference, candidate), _SIDES, counts, strict=True)
    ]
    return OrderCause(
        Text(
            f"{counts[0]} rows are left for the sampler in the reference, {counts[1]} in the "
            "candidate: any permutation of them is another one",
            f"留给采样器的行数：参考为 {counts[0]}，被测为 {counts[1]}，因此打乱的结果必然不同",
        ),
        tuple(evidence),
    )


def _deviation(odd: list[tuple[Side, OrderFit | None]]) -> OrderCause:
    """Say what a run did otherwise than its own configuration says."""
    texts, evidence = [], []
    for side, fit in odd:
        assert fit is not None
        name = _SIDE_NAMES[side]
        if fit.moved is not None:
            texts.append(Text(f"{name.en}'s {fit.moved.en}", f"{name.zh}{fit.moved.zh}"))
        elif fit.changed is not None:
            texts.append(
                Text(
                    f"{name.en}'s rows are those of {fit.changed.en}",
                    f"{name.zh}的数据顺序对应：{fit.changed.zh}",
                )
            )
        evidence.append(
            Evidence(
                source=f"{fit.order.sampler.name}, {fit.num_steps} of {fit.num_steps} steps agree",
                side=side,
                key=FIELDS["seed"],
                values=(fit.settings.seed,),
            )
        )
    return OrderCause(
        Text("; ".join(t.en for t in texts), "；".join(t.zh for t in texts)), tuple(evidence)
    )


def _settings_differ(
    reference: RunOrder, candidate: RunOrder, target: RowOrder, step: int
) -> OrderCause | None:
    """Name the setting that alone turns the reference's rows into the candidate's."""
    assert reference.rows is not None and candidate.rows is not None
    differing = list(_differing(reference.settings, candidate.settings))
    wanted = target.step(step)
    alone = [
        group
        for group in differing
        if _gives(
            _with(reference.settings, candidate.settings, group), reference.rows, step, wanted
        )
    ]
    rows_alone = reference.rows != candidate.rows and _gives(
        reference.settings, candidate.rows, step, wanted
    )
    named = alone[:1] or ([("rows",)] if rows_alone else [])
    if not named:  # several together: those that change the reference's rows at all
        own = _predicted(reference)
        named = [
            group
            for group in differing
            if own is not None
            and not _gives(
                _with(reference.settings, candidate.settings, group),
                reference.rows,
                step,
                own.step(step),
            )
        ]
        named += [("rows",)] if reference.rows.num_rows != candidate.rows.num_rows else []
    if not named:
        return None
    return _by_names([name for group in named for name in group], reference, candidate)


def _differing(reference: OrderSettings, candidate: OrderSettings) -> Iterator[tuple[str, ...]]:
    only_torchdata = {settings.sampler for settings in (reference, candidate)} == {TORCHDATA}
    for group in _GROUPS:
        if group == ("num_workers",) and not only_torchdata:
            continue  # no other sampler depends on them
        if any(getattr(reference, name) != getattr(candidate, name) for name in group):
            yield group


def _with(
    reference: OrderSettings, candidate: OrderSettings, group: tuple[str, ...]
) -> OrderSettings:
    return replace(reference, **{name: getattr(candidate, name) for name in group})


def _gives(settings: OrderSettings, rows: Rows, step: int, wanted: object) -> bool:
    try:
        return np.array_equal(predict(settings, rows).order.peek(step), np.asarray(wanted))
    except ConfigError:
        return False


def _by_names(fields: list[str], reference: RunOrder, candidate: RunOrder) -> OrderCause:
    texts, evidence = [], []
    for name in fields:
        values = [_value(run, name) for run in (reference, candidate)]
        if name not in _LABELS or values[0] == values[1]:
            continue
        label = _LABELS[name]
        texts.append(
            Text(
                f"{label.en} {values[0]} in the reference, {values[1]} in the candidate",
                f"{label.zh}：参考为 {values[0]}，被测为 {values[1]}",
            )
        )
        for run, side, value in zip((reference, candidate), _SIDES, values, strict=True):
            evidence.append(_evidence(run, name, side, value))
    return OrderCause(
        Text(
            f"replaying both samplers gives these rows: {'; '.join(t.en for t in texts)}",
            f"重放两侧采样器正好得到这些数据：{'；'.join(t.zh for t in texts)}",
        ),
        tuple(evidence),
    )


def _value(run: RunOrder, name: str) -> str | int | bool | None:
    if name == "rows":
        return run.rows.num_rows if run.rows else None
    value: str | int | bool | None = getattr(run.settings, name)
    return value


def _evidence(run: RunOrder, name: str, side: Side, value: str | int | bool | None) -> Evidence:
    stated = run.settings.sources.get(name)
    if stated is None:
        return Evidence(source="row order", side=side, key=name, values=(value,))
    where = stated.raw.provenance
    return Evidence(
        source=where.source, side=side, line=where.line, key=stated.raw.key, values=(value,)
    )
