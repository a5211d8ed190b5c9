"""Categories of benchmarks: what each gains or loses, and whether the total hides it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from align.evals.judge import FALSE_ALARMS, TOLERANCES, Judgement
from align.evals.pair import EvalPair


@dataclass(frozen=True, slots=True)
class Category:
    """The mean difference of a category's scores under one metric, in points of the share.

    Args:
        is_task: it is a single task that stands for itself.
        stderr: of that mean; None where the error of one of its scores is not known.
        is_real: beyond which questions were drawn, over all categories of the metric.
    """

    name: str
    metric: str
    pairs: tuple[EvalPair, ...]
    is_task: bool
    difference: float
    stderr: float | None
    is_real: bool


@dataclass(frozen=True, slots=True)
class Hidden:
    """A gain and a loss that leave the total where it was."""

    metric: str
    total: float
    gain: Category
    loss: Category


def categories_of(judgements: Sequence[Judgement]) -> tuple[Category, ...]:
    """Gather scores by category, tasks without one by themselves.

    A task that is a category's total (`mmlu` beside its subjects) does not count again. Source of
    the error: independent questions, sqrt(sum of squares) over the number of scores.
    """
    groups: dict[tuple[str, str], list[EvalPair]] = defaultdict(list)
    parents = {j.pair.reference.score.group for j in judgements}
    for judgement in judgements:
        score = judgement.pair.reference.score
        if score.group is not None:
            groups[score.group, score.metric].append(judgement.pair)
        elif score.task not in parents:
            groups[score.task, score.metric].append(judgement.pair)
    numbers: dict[str, int] = defaultdict(int)
    for _, metric in groups:
        numbers[metric] += 1
    return tuple(
        _category(name, metric, pairs, numbers[metric]) for (name, metric), pairs in groups.items()
    )


def hidden_of(categories: Sequence[Category]) -> tuple[Hidden, ...]:
    """Return the metrics whose total is within 2 points while a category gains and another loses.

    Both really, and each by more than the total moves.
    """
    by_metric: dict[str, list[Category]] = defaultdict(list)
    for category in categories:
        by_metric[category.metric].append(category)
    found = []
    for metric, members in by_metric.items():
        total = sum(c.difference for c in members) / len(members)
        real = [c for c in members if c.is_real and abs(c.difference) > abs(total)]
        gain = max(real, key=lambda c: c.difference, default=None)
        loss = min(real, key=lambda c: c.difference, default=None)
        if gain is None or loss is None or not gain.difference > 0 > loss.difference:
            continue
        if abs(total) <= TOLERANCES["trained"]:
            found.append(Hidden(metric, total, gain, loss))
    return tuple(found)


def _category(name: str, metric: str, pairs: Sequence[EvalPair], num_tested: int) -> Category:
    difference = sum(pair.difference for pair in pairs) / len(pairs)
    errors = [pair.stderr for pair in pairs]
    known = [error for error in errors if error is not None]
    stderr = math.hypot(*known) / len(pairs) if len(known) == len(errors) else None
    threshold = NormalDist().inv_cdf(1 - FALSE_ALARMS / num_tested / 2)
    return Category(
        name=name,
        metric=metric,
        pairs=tuple(pairs),
        is_task=pairs[0].reference.score.group is None,
        difference=difference,
        stderr=stderr,
        is_real=stderr is not None and stderr > 0 and abs(difference) > threshold * stderr,
    )
