"""Which other formula gives a run's advantages, where that of its configuration does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from align.core.text import Text
from align.rollout.estimators import ESTIMATORS, Estimator, Reads, Settings, Whitening
from align.rollout.estimators_declared import Declared
from align.rollout.estimators_signals import Signals, apart, signals_of
from align.rollout.group_advantages import BoolArray, Int64
from align.rollout.trained_rows import FloatArray, TrainedStep

GROUPS, NORMALIZATION, SCORES_MOVED = "groups", "normalization", "scores_moved"
PERMUTED, SCALED, DISCOUNT, ESTIMATOR = "permuted", "scaled", "discount", "estimator"
_DISCOUNTS = (1.0, 0.99, 0.98, 0.97, 0.95, 0.9, 0.0)


@dataclass(frozen=True, slots=True)
class Formula:
    """What a run computes in place of its configuration's formula.

    Args:
        kind: of the mistake, as in the finding's id.
        what: predicate of "the run …".
    """

    kind: str
    what: Text


Tried = tuple[Formula, Callable[[], FloatArray]]


def formula_of(steps: Sequence[TrainedStep], declared: Declared) -> Formula | None:
    """Return the formula that gives every recorded advantage of all steps.

    None where no formula does, or formulas of several kinds do.

    Args:
        steps: with advantages.
        declared: what the configuration says.
    """
    wrong = [_differing_rows(step, declared) for step in steps]
    fitting: dict[str, Formula] = {}
    for formula in _fitting(steps, wrong, declared.estimator, partial(_formulas, declared)):
        fitting.setdefault(formula.kind, formula)
    if fitting:
        return next(iter(fitting.values())) if len(fitting) == 1 else None
    another = _another(steps, wrong, declared)
    return another or _permuted(steps, declared) or _scaled(steps, declared)


def _differing_rows(step: TrainedStep, declared: Declared) -> BoolArray:
    """bool [b]."""
    signals = signals_of(step, declared.estimator)
    expected = signals.expected(declared.estimator, declared.settings)
    return np.asarray(signals.differing(expected).any(axis=1))


def _fitting(
    steps: Sequence[TrainedStep],
    wrong: Sequence[BoolArray],
    estimator: Estimator,
    formulas: Callable[[Signals], Iterator[Tried]],
) -> list[Formula]:
    """Return the formulas that fit all steps; one that leaves open whatever is wrong does not.

    Args:
        wrong: bool [b] of each step, rows that are not as declared.
        estimator: whose columns the formulas need.
        formulas: of equal batches as many, in one order.
    """
    living: dict[int, Formula] | None = None
    explaining: set[int] = set()
    for step, rows in zip(steps, wrong, strict=True):
        signals = signals_of(step, estimator)
        tried = dict(enumerate(formulas(signals)))
        living = {at: formula for at, (formula, _) in tried.items()} if living is None else living
        for at in list(living):
            expected = tried[at][1]() if at in tried else None
            if expected is None or signals.differing(expected).any():
                del living[at]
            elif (signals.judged(expected).any(axis=1) & rows).any():
                explaining.add(at)
        if not living:
            return []
    return [formula for at, formula in (living or {}).items() if at in explaining]


def _formulas(declared: Declared, signals: Signals) -> Iterator[Tried]:
    """Yield formulas of the declared estimator and the advantages they give."""
    estimator, settings = declared.estimator, declared.settings
    for formula, other in _settings(estimator, settings):
        yield formula, partial(signals.expected, estimator, other)
    if Reads.GROUPS in estimator.reads:
        for what, groups in _groupings(signals.groups):
            text = Text(f"compares {what.en} with each other", f"把{what.zh}当作一组")
            regrouped = replace(signals, groups=groups)
            yield Formula(GROUPS, text), partial(regrouped.expected, estimator, settings)
    size = int(np.bincount(signals.groups)[signals.groups[0]])
    for count in (1, -1, size, -size):
        moved = replace(signals, rewards=np.roll(signals.rewards, count, axis=0))
        yield Formula(SCORES_MOVED, _moved(count)), partial(moved.expected, estimator, settings)
    turned = replace(signals, rewards=signals.rewards[::-1])
    yield Formula(SCORES_MOVED, _REVERSED), partial(turned.expected, estimator, settings)


def _settings(estimator: Estimator, declared: Settings) -> Iterator[tuple[Formula, Settings]]:
    """Yield the mistakes that are other settings of the same estimator."""
    scaling = declared.scaling
    if Reads.SCALING in estimator.reads:
        for what, other in (
            (_OTHER_STD[scaling.by_std], replace(scaling, by_std=not scaling.by_std)),
            (_POPULATION, replace(scaling, by_std=True, bessel=False)),
            (_ONE_STD, replace(scaling, by_std=True, whole_batch=True)),
        ):
            yield Formula(NORMALIZATION, what), replace(declared, scaling=other)
    if Reads.WHITENING in estimator.reads:
        for whitening, what in _LESS_WHITE.items():
            yield Formula(NORMALIZATION, what), replace(declared, whitening=whitening)
    if Reads.GAMMA in estimator.reads:
        for gamma in _DISCOUNTS:
            if gamma != declared.gamma:
                what = _discounts(gamma, declared.gamma)
                yield Formula(DISCOUNT, what), replace(declared, gamma=gamma)


def _groupings(groups: Int64) -> Iterator[tuple[Text, Int64]]:
    count = len(groups)
    row, sizes = np.arange(count), np.bincount(groups)
    n = int(sizes[0])
    yield Text("the whole batch", "整个 batch"), np.zeros(count, np.int64)
    if count % n or (sizes != n).any():
        return
    yield Text(f"rows i, i + {n}, i + {2 * n}, …", f"第 i、i + {n}、i + {2 * n}…行"), row % n
    num_prompts = count // n
    yield Text(f"rows i, i + {num_prompts}, …", f"第 i、i + {num_prompts}…行"), row % num_prompts
    yield Text(f"every {n} neighbouring rows", f"每 {n} 个相邻行"), row // n
    for late in range(1, n):
        yield (
            Text(
                f"the rows of groups that begin {late} row{'s' * (late > 1)} late",
                f"起点晚 {late} 行的各组",
            ),
            np.roll(groups, late),
        )


def _another(
    steps: Sequence[TrainedStep], wrong: Sequence[BoolArray], declared: Declared
) -> Formula | None:
    """Name every other estimator that gives all the advantages; None where none does."""
    names: list[str] = []
    for name, estimator, settings in _others(declared):
        formulas = partial(_one, estimator, settings)
        plain = name.removesuffix("_vectorized")  # the other is named only where they depart
        if plain not in names and _fitting(steps, wrong, estimator, formulas):
            names.append(name)
    if not names:
        return None
    return Formula(
        ESTIMATOR,
        Text(
            f"computes {' or '.join(names)}, where {declared.name} is configured",
            f"按 {' 或 '.join(names)} 计算，而配置为 {declared.name}",
        ),
    )


def _others(declared: Declared) -> Iterator[tuple[str, Estimator, Settings]]:
    seen = [declared.estimator]
    for name, estimator in ESTIMATORS.items():
        if estimator in seen:
            continue
        seen.append(estimator)
        if Reads.SCALING not in estimator.reads:
            yield name, estimator, declared.settings
            continue
        for by_std, what in ((True, name), (False, f"{name} (not divided by the std)")):
            scaling = replace(declared.settings.scaling, by_std=by_std)
            yield what, estimator, replace(declared.settings, scaling=scaling)


def _one(estimator: Estimator, settings: Settings, signals: Signals) -> Iterator[Tried]:
    yield Formula(ESTIMATOR, Text("", "")), partial(signals.expected, estimator, settings)


def _permuted(steps: Sequence[TrainedStep], declared: Declared) -> Formula | None:
    for step in steps:
        signals = signals_of(step, declared.estimator)
        expected = signals.expected(declared.estimator, declared.settings)
        own = signals.mask > 0
        if not signals.judged(expected)[own].all():
            return None
        if apart(np.sort(signals.least[own]), np.sort(expected[own])).any():
            return None
    return Formula(PERMUTED, _OTHER_ROWS)


def _scaled(steps: Sequence[TrainedStep], declared: Declared) -> Formula | None:
    factor = 0.0
    for step in steps:
        signals = signals_of(step, declared.estimator)
        expected = signals.expected(declared.estimator, declared.settings)
        judged = signals.judged(expected)
        recorded, expected = signals.least[judged], expected[judged]
        square = float(expected @ expected)
        if not factor and square:
            factor = float(recorded @ expected) / square
        if apart(recorded / (factor or 1.0), expected).any():
            return None
    if not factor:
        return None
    return Formula(
        SCALED,
        Text(f"multiplies every advantage by {factor:.3g}", f"把所有 advantage 乘以 {factor:.3g}"),
    )


def _moved(count: int) -> Text:
    rows, where = abs(count), "before" if count > 0 else "after"
    side = "前" if count > 0 else "后"
    return Text(
        f"takes the scores of {rows} row{'s' * (rows > 1)} {where}", f"使用了{side} {rows} 行的得分"
    )


def _discounts(gamma: float, usual: float) -> Text:
    return Text(
        f"discounts with γ = {gamma:g}, where {usual:g} is configured",
        f"以 γ = {gamma:g} 折扣，而配置为 {usual:g}",
    )


_REVERSED = Text("takes the scores in reversed order", "以相反的顺序使用得分")
_OTHER_ROWS = Text("gives every row the advantage of another", "把每一行的 advantage 给了别的行")
_OTHER_STD = {
    True: Text("does not divide by the group's std", "没有除以组内标准差"),
    False: Text("divides by the group's std", "除以了组内标准差"),
}
_POPULATION = Text("takes the std without Bessel's correction", "使用了未做贝塞尔校正的标准差")
_ONE_STD = Text("divides by the std of the whole batch", "除以了整个 batch 的标准差")
_LESS_WHITE = {
    Whitening.NONE: Text("does not whiten", "没有做白化"),
    Whitening.CENTRED: Text(
        "subtracts the mean and divides by no deviation", "只减去均值，未除以标准差"
    ),
}
