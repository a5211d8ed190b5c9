"""Other losses of pairs that are computed by mistake, one change from the declared one each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from align.core.text import Text
from align.objective.errors import ObjectiveError
from align.referee.preference_loss import (
    LOSSES,
    SMOOTHED_SIGMOID,
    PreferenceObjective,
    recompute_preference,
)
from align.referee.preference_passes import PreferencePass

_BETAS = np.geomspace(1e-4, 1e2, 121)
_SMOOTHINGS = np.linspace(0.0, 0.49, 50)
_HALVINGS = 60  # of an interval, until float64 ends it
_DIGITS = (1, 2, 3, 4, 5)  # that somebody writes a setting with
_LARGEST_SCALE = 1e6
_FEW_DIGITS = 2  # a setting that one micro-batch alone shows

Change = Callable[[float], PreferenceObjective]


@dataclass(frozen=True, slots=True)
class PreferenceHypothesis:
    """A formula that would explain recorded losses which the declared one does not give.

    Args:
        id: of the finding, such as "loss.preference_beta".
        what: what is computed instead, as a clause after "the run".
        fix: what to look at.
    """

    id: str
    what: Text
    objective: PreferenceObjective
    fix: Text


def preference_hypotheses(
    declared: PreferenceObjective, misfits: Sequence[PreferencePass]
) -> Iterator[PreferenceHypothesis]:
    """Yield every other formula; settings are those that the misfits give.

    Args:
        misfits: micro-batches whose loss is not the declared one; at least one.
    """
    yield from _of_terms(declared)
    yield from _of_types(declared)
    yield from _of_settings(declared, misfits)


def fits(given: PreferencePass, objective: PreferenceObjective) -> bool:
    """Whether a formula gives a micro-batch's loss to rounding."""
    try:
        amount = recompute_preference(given, objective)
    except ObjectiveError:  # a setting that this loss cannot have
        return False
    return amount is not None and amount.is_met_by(given.loss)


def _of_terms(declared: PreferenceObjective) -> Iterator[PreferenceHypothesis]:
    yield PreferenceHypothesis(
        "loss.preference_sign",
        Text("has the sign of the loss wrong", "损失的符号相反"),
        replace(declared, scale=-declared.scale),
        Text("Look at where the loss of a pair is negated.", "请检查对每对样本的损失取负号之处。"),
    )
    yield PreferenceHypothesis(
        "loss.preference_exchanged",
        Text(
            "prefers the rejected response: both are taken for each other, or their margin is "
            "negated",
            "偏好的是 rejected 回答：chosen 与 rejected 被互换，或其差值被取负",
        ),
        replace(declared, exchanged=not declared.exchanged),
        Text(
            "Look at how a batch is split into chosen and rejected rows, and at the sign of "
            "chosen - rejected.",
            "请检查 batch 拆分为 chosen 与 rejected 的顺序，以及 chosen - rejected 的符号。",
        ),
    )
    yield PreferenceHypothesis(
        "loss.preference_reference",
        Text("leaves the reference's log_probs out", "没有计入参考模型的 log_probs"),
        replace(declared, reference_free=not declared.reference_free),
        Text(
            "Look at what is subtracted from the policy's log_probs before beta is applied.",
            "请检查在乘以 beta 之前，从策略的 log_probs 中减去了什么。",
        ),
    )


def _of_types(declared: PreferenceObjective) -> Iterator[PreferenceHypothesis]:
    for name in LOSSES:
        types = ((name, 1.0),)
        needs_smoothing = name == "exo_pair" and not declared.label_smoothing
        if types == declared.types or name == SMOOTHED_SIGMOID or needs_smoothing:
            continue
        yield PreferenceHypothesis(
            "loss.preference_type",
            Text(f"computes the loss of loss_type {name}", f"计算的是 loss_type {name} 的损失"),
            replace(declared, types=types),
            Text(
                "Look at where loss_type chooses the formula.", "请检查按 loss_type 选择公式之处。"
            ),
        )


def _of_settings(
    declared: PreferenceObjective, misfits: Sequence[PreferencePass]
) -> Iterator[PreferenceHypothesis]:
    def with_beta(value: float) -> PreferenceObjective:
        return replace(declared, beta=value)

    def with_smoothing(value: float) -> PreferenceObjective:
        names = tuple(
            (SMOOTHED_SIGMOID if name == "sigmoid" else name, weight)
            for name, weight in declared.types
        )
        return replace(declared, types=names, label_smoothing=value)

    for value in _settings(with_beta, _BETAS, misfits):
        yield PreferenceHypothesis(
            "loss.preference_beta",
            Text(f"takes beta = {value:.4g}", f"所用的 beta 为 {value:.4g}"),
            with_beta(value),
            Text("Look at which beta the loss is given.", "请检查传给损失的 beta。"),
        )
    for value in _settings(with_smoothing, _SMOOTHINGS, misfits):
        yield PreferenceHypothesis(
            "loss.preference_smoothing",
            Text(f"smooths labels by {value:.4g}", f"标签平滑为 {value:.4g}"),
            with_smoothing(value),
            Text(
                "Look at which label_smoothing the loss is given.",
                "请检查传给损失的 label_smoothing。",
            ),
        )
    for value in _scales(declared, misfits):
        yield PreferenceHypothesis(
            "loss.preference_scale",
            Text(f"multiplies the loss by {value:.4g}", f"损失被乘以 {value:.4g}"),
            replace(declared, scale=declared.scale * value),
            Text(
                "Look at what the sum over pairs is divided by.", "请检查对各对样本求和后的除数。"
            ),
        )


def _settings(
    change: Change, grid: Iterable[float], misfits: Sequence[PreferencePass]
) -> Iterator[float]:
    """Yield the values of a setting that give all misfits their losses.

    A value of more digits than one writes is found from one micro-batch and needs another.
    """
    found: list[float] = []
    for root in _roots(change, list(grid), misfits[0]):
        for value in (*(_rounded(root, digits) for digits in _DIGITS), root):
            is_plain = value == _rounded(value, _FEW_DIGITS)
            if len(misfits) == 1 and not is_plain:
                continue
            if all(fits(misfit, change(value)) for misfit in misfits):
                found.append(value)
                break
    yield from dict.fromkeys(found)


def _roots(change: Change, grid: Sequence[float], given: PreferencePass) -> Iterator[float]:
    """Yield where a micro-batch's recomputed loss crosses the recorded one."""

    def apart(value: float) -> float:
        try:
            amount = recompute_preference(given, change(value))
        except ObjectiveError:
            return float("nan")
        return float("nan") if amount is None else amount.value - given.loss

    values = [apart(value) for value in grid]
    for low, high, below, above in zip(grid, grid[1:], values, values[1:], strict=False):
        if below * above <= 0:
            yield _bisected(apart, low, high, rising=above > below)


def _bisected(apart: Callable[[float], float], low: float, high: float, *, rising: bool) -> float:
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if (apart(middle) < 0) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _scales(declared: PreferenceObjective, misfits: Sequence[PreferencePass]) -> Iterator[float]:
    amount = recompute_preference(misfits[0], declared)
    if amount is None or amount.value == 0:
        return
    ratio = misfits[0].loss / amount.value
    if not 1 / _LARGEST_SCALE <= ratio <= _LARGEST_SCALE:  # NaN neither
        return
    whole = round(ratio) if ratio > 1 else 1 / round(1 / ratio)
    scaled = [(value, replace(declared, scale=declared.scale * value)) for value in (whole, ratio)]
    for value, objective in scaled:
        is_plain = value == whole
        if (is_plain or len(misfits) > 1) and all(fits(m, objective) for m in misfits):
            yield float(value)
            return


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")
