"""Loss: does an update train on the mask and the advantages that its rows were given?

An invariant within one run. The batch of a step and the micro-batches that trained on it are
recorded apart; a row is told by its log_probs, so the rest of it must be the batch's too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.referee.captured_updates import captured_updates
from align.referee.update import Update
from dumps.store.run_data import RunData

_SAME = Threshold(2.0**-7, "two bfloat16 roundings (2^-8 each) of an advantage")
_STEPS = 4
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


@dataclass(frozen=True, slots=True)
class Moved:
    """The first update that does not train on what its rows were given.

    Args:
        kind: ends the finding's id.
        tensor: that differs.
        what: predicate of "the run's updates …".
        num_rows, num_moved: rows of the update, and those that have another.
    """

    update: Update
    kind: str
    tensor: str
    what: Text
    num_rows: int
    num_moved: int


def moved_rows(run: RunData) -> Moved | None:
    """Return the first update that trains on another mask or advantages; None without one.

    Only a few steps are looked at: what moves rows moves those of every step.
    """
    first: int | None = None
    for update in captured_updates(run):
        if first is None:
            first = update.step
        if update.step >= first + _STEPS:
            return None
        found = _moved_mask(update) or _moved_advantages(update)
        if found is not None:
            return found
    return None


def _moved_mask(update: Update) -> Moved | None:
    given = update.given.get("response_mask")
    if given is None:
        return None
    own, batch = update.mask.bool(), given.bool()
    trained = own.any(-1)  # a row left out whole is a choice
    rows = (own != batch).any(-1) & trained
    if not bool(rows.any()):
        return None
    shifted = any(bool((own[rows] == batch[rows].roll(by, 1)).all()) for by in (-1, 1))
    kind, what = ("mask_shifted", _SHIFTED) if shifted else ("mask_differs", _OTHER_MASK)
    return Moved(update, kind, "response_mask", what, len(rows), int(rows.sum()))


def _moved_advantages(update: Update) -> Moved | None:
    given = update.given.get("advantages")
    if given is None:
        return None
    own = update.mask.bool()
    allowed = _SAME.value * given.abs().clamp(min=1.0)
    rows = (((update.advantages - given).abs() > allowed) & own).any(-1)
    if not bool(rows.any()):
        return None
    mine, batch = (each[own].sort().values for each in (update.advantages, given))
    of_others = bool(((mine - batch).abs() <= _SAME.value).all())
    what = _OF_OTHERS if of_others else _OTHER_ADVANTAGES
    return Moved(update, "advantages_moved", "advantages", what, len(rows), int(rows.sum()))


def moved_finding(both: Mapping[Side, Moved | None]) -> Finding | None:
    """Name the one side that trains on something else than its rows were given."""
    found = [(side, moved) for side, moved in both.items() if moved is not None]
    if len(found) != 1:
        return None
    side, moved = found[0]
    update = moved.update
    count = {side: moved.num_moved}
    return Finding(
        id=f"loss.{moved.kind}",
        rung=Rung.LOSS,
        severity=Severity.ERROR,
        title=Text(
            f"the {side.value}'s updates {moved.what.en}: {moved.num_moved} of {moved.num_rows} "
            f"rows at step {update.step}, update {update.number + 1}",
            f"{_ZH[side]}的更新{moved.what.zh}：第 {update.step} 步第 {update.number + 1} 次更新 "
            f"{moved.num_rows} 行中有 {moved.num_moved} 行",
        ),
        reference=count.get(Side.REFERENCE, 0),
        candidate=count.get(Side.CANDIDATE, 0),
        evidence=(
            Evidence(
                str(update.source),
                side,
                key=f"{moved.tensor}, step {update.step}, update {update.number}",
            ),
            Evidence("trainer_inputs of the same step", side, key=moved.tensor),
        ),
        why=Text(
            "Rows and what belongs to them came apart between the batch and the loss: other tokens "
            "are reinforced than those that earned it. The other run's updates have their own.",
            "从 batch 到损失之间，行与其张量错位：被强化的不是应得的 token；另一侧没有错位。",
        ),
        fix=Text(
            "Look at what splits, shuffles or balances rows into mini-batches and micro-batches, "
            "and at what cuts and shifts their columns: every tensor must be indexed alike.",
            "检查把行切分、打乱或均衡为 mini-batch 与 micro-batch，以及截取、移动列的代码："
            "所有张量须用同一索引。",
        ),
        mechanism=Mechanism(Rung.LOSS, Strength.SEMANTIC),
    )


_SHIFTED = Text("mask their rows one token off", "所用的 mask 偏移了一个 token")
_OTHER_MASK = Text("do not mask their rows as the batch does", "所用的 mask 与 batch 中的不同")
_OF_OTHERS = Text("train on the advantages of other rows", "所用的 advantage 是别的行的")
_OTHER_ADVANTAGES = Text(
    "do not train on the advantages of their rows", "所用的 advantage 不是各行自己的"
)
