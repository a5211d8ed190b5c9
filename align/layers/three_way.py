"""Two runs and a referee: which of the two is further from the finer computation."""

from __future__ import annotations

from align.core.finding import Side
from align.core.text import Text
from align.layers.along import along
from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from align.layers.walk import Compared
from dumps.store.run_data import RunData
from dumps.store.tensor_records import TensorRecord

_CLEARLY = 2.0
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def three_way_text(departure: Compared, referee: RunData | None, step: int) -> Text:
    """Say which side the referee contradicts at a departure; empty without a referee."""
    exact = None if referee is None else _record(captured_steps(referee).get(step), departure)
    if exact is None:
        return Text("", "")
    errors = [_error(exact, record, departure) for record in _sides(departure)]
    own, other = errors
    further = Side.REFERENCE if own > other else Side.CANDIDATE
    if max(errors) < _CLEARLY * min(errors):
        return Text(
            f" Against the referee both are off alike: reference {own:.2g}, candidate {other:.2g}.",
            f"与裁判相比两侧偏差相近：参考 {own:.2g}，被测 {other:.2g}。",
        )
    return Text(
        f" Against the referee the reference is off by {own:.2g} and the candidate by {other:.2g}: "
        f"the {further.value} is wrong.",
        f"与裁判相比，参考偏差 {own:.2g}，被测偏差 {other:.2g}：错在{_ZH[further]}。",
    )


def _sides(departure: Compared) -> tuple[TensorRecord, TensorRecord]:
    return departure.reference, departure.candidate


def _error(exact: TensorRecord, record: TensorRecord, departure: Compared) -> float:
    """Return the error's size, or its coefficient where the departure is one."""
    relative = difference(exact, record).relative
    if departure.is_large or departure.systematic is None:
        return relative
    found = along(exact, record, relative, departure.systematic.direction)
    return 0.0 if found is None else abs(found.size)


def _record(step: CapturedStep | None, departure: Compared) -> TensorRecord | None:
    own = departure.reference
    found = None if step is None else step.of(own.phase).get((own.name, own.update))
    return found if found is not None and found.digest == own.digest else None
