"""Which other formula gives a run's advantages, where that of its configuration does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from align.core.text import Text
from align.rollout.group_advantages import (
    TOLERANCE,
    Int64,
    Scaling,
    differs_from,
    group_advantages,
    prompt_groups,
)
from align.rollout.trained_rows import FloatArray, TrainedStep

GROUPS, NORMALIZATION, SCORES_MOVED = "groups", "normalization", "scores_moved"
PERMUTED, SCALED = "permuted", "scaled"


@dataclass(frozen=True, slots=True)
class Formula:
    """What a run computes in place of its configuration's formula.

    Args:
        kind: of the mistake, as in the finding's id.
        what: predicate of "the run …".
    """

    kind: str
    what: Text


def formula_of(steps: Sequence[TrainedStep], scaling: Scaling) -> Formula | None:
    """Return the formula that gives every recorded advantage of all steps.

    None where no formula does, or formulas of several kinds do.

    Args:
        steps: with advantages.
        scaling: what the configuration says of the group's std.
    """
    tried = [list(_formulas(step, scaling)) for step in steps]
    fitting: dict[str, Formula] = {}
    for at in range(min(map(len, tried), default=0)):
        pairs = zip(steps, tried, strict=True)
        if all(not differs_from(step, found[at][1]).any() for step, found in pairs):
            formula = tried[0][at][0]
            fitting.setdefault(formula.kind, formula)
    if not fitting:
        return _permuted(steps, scaling) or _scaled(steps, scaling)
    return next(iter(fitting.values())) if len(fitting) == 1 else None


def _formulas(step: TrainedStep, scaling: Scaling) -> Iterator[tuple[Formula, FloatArray]]:
    """Yield formulas and the advantages they give; of equal batches as many, in one order."""
    scores, groups = step.trained, prompt_groups(step)
    size = np.bincount(groups)[groups]
    plain = group_advantages(scores, groups, replace(scaling, by_std=True))
    means = (np.bincount(groups, scores) / np.bincount(groups))[groups]
    yield (
        Formula(NORMALIZATION, _OTHER_STD[scaling.by_std]),
        group_advantages(scores, groups, replace(scaling, by_std=not scaling.by_std)),
    )
    yield Formula(NORMALIZATION, _POPULATION), plain * np.sqrt(size / np.maximum(size - 1, 1))
    yield (
        Formula(NORMALIZATION, _ONE_STD),
        (scores - means) / (scores.std(ddof=1) + scaling.epsilon),
    )
    for what, other in _groupings(len(step), groups):
        text = Text(f"compares {what.en} with each other", f"把{what.zh}当作一组")
        yield Formula(GROUPS, text), group_advantages(scores, other, scaling)
    for count in (1, -1, int(size[0]), -int(size[0])):
        yield (
            Formula(SCORES_MOVED, _moved(count)),
            group_advantages(np.roll(scores, count), groups, scaling),
        )
    yield (
        Formula(SCORES_MOVED, _REVERSED),
        group_advantages(scores[::-1], groups, scaling),
    )


def _groupings(count: int, groups: Int64) -> Iterator[tuple[Text, Int64]]:
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


def _permuted(steps: Sequence[TrainedStep], scaling: Scaling) -> Formula | None:
    for step in steps:
        expected = group_advantages(step.trained, prompt_groups(step), scaling)
        recorded = _recorded(step)
        judged = np.isfinite(expected) & np.isfinite(recorded)
        if not judged.all() or _apart(np.sort(recorded), np.sort(expected)).any():
            return None
    return Formula(PERMUTED, _OTHER_ROWS)


def _scaled(steps: Sequence[TrainedStep], scaling: Scaling) -> Formula | None:
    pairs = [
        (_recorded(step), group_advantages(step.trained, prompt_groups(step), scaling))
        for step in steps
    ]
    recorded, expected = (np.concatenate(side) for side in zip(*pairs, strict=True))
    judged = np.isfinite(recorded) & np.isfinite(expected)
    recorded, expected = recorded[judged], expected[judged]
    square = float(expected @ expected)
    factor = float(recorded @ expected) / square if square else 0.0
    if factor == 0 or _apart(recorded / factor, expected).any():
        return None
    return Formula(
        SCALED,
        Text(f"multiplies every advantage by {factor:.3g}", f"把所有 advantage 乘以 {factor:.3g}"),
    )


def _recorded(step: TrainedStep) -> FloatArray:
    assert step.least is not None
    return step.least


def _apart(one: FloatArray, other: FloatArray) -> np.ndarray:  # type: ignore[type-arg]
    far: np.ndarray = np.abs(one - other) > TOLERANCE.value * np.maximum(1.0, np.abs(other))  # type: ignore[type-arg]
    return far


def _moved(count: int) -> Text:
    rows, where = abs(count), "before" if count > 0 else "after"
    side = "前" if count > 0 else "后"
    return Text(
        f"takes the scores of {rows} row{'s' * (rows > 1)} {where}", f"使用了{side} {rows} 行的得分"
    )


_REVERSED = Text("takes the scores in reversed order", "以相反的顺序使用得分")
_OTHER_ROWS = Text("gives every row the advantage of another", "把每一行的 advantage 给了别的行")
_OTHER_STD = {
    True: Text("does not divide by the group's std", "没有除以组内标准差"),
    False: Text("divides by the group's std", "除以了组内标准差"),
}
_POPULATION = Text("takes the std without Bessel's correction", "使用了未做贝塞尔校正的标准差")
_ONE_STD = Text("divides by the std of the whole batch", "除以了整个 batch 的标准差")
