"""What acceptance decided: one result a clause, and the decision they make together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from align.acceptance.policy import Policy
from align.core.text import Text
from align.curves.criterion import Criterion, Outcome
from align.curves.pair import PairedMetric


@dataclass(frozen=True, slots=True)
class Result:
    """One criterion and what the reference's own repeats do under the same formula.

    Args:
        task: the criterion is of this task alone; None where it is of the whole.
        floor: greatest error between two runs of the reference; NaN without repeats.
        remark: what changed the outcome or why there is none; None where nothing did.
    """

    criterion: Criterion
    task: str | None = None
    floor: float = math.nan
    remark: Text | None = None

    @property
    def outcome(self) -> Outcome:
        """What the criterion's interval says, repeats allowed for."""
        return self.criterion.outcome


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything that was judged under one policy.

    Args:
        judged: the curve the certificate draws: the first that a clause judged.
        num_repeats: further runs of the reference.
    """

    policy: Policy
    results: tuple[Result, ...]
    judged: PairedMetric | None
    num_repeats: int

    @property
    def outcome(self) -> Outcome:
        """Fail where one clause fails, pass where all pass, else undecided."""
        outcomes = {result.outcome for result in self.results}
        if Outcome.FAIL in outcomes:
            return Outcome.FAIL
        if outcomes <= {Outcome.MISSING}:
            return Outcome.MISSING
        return Outcome.PASS if outcomes == {Outcome.PASS} else Outcome.UNDECIDED


def with_floor(result: Result, floors: Iterable[float]) -> Result:
    """Add what repeats of the reference do; a failure no larger than that decides nothing."""
    floor = max((f for f in floors if math.isfinite(f)), default=math.nan)
    criterion = result.criterion
    if criterion.outcome is not Outcome.FAIL or not criterion.error <= floor:
        return replace(result, floor=floor)
    return replace(
        result,
        floor=floor,
        criterion=replace(criterion, outcome=Outcome.UNDECIDED),
        remark=Text(
            f"above the limit, but two runs of the reference differ by {floor:.3g} as well: "
            "this recipe cannot be held to this limit",
            f"超过限值，但参考的两次运行之间也相差 {floor:.3g}：该配方本身达不到此限值",
        ),
    )
