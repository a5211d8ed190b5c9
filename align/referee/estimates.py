"""Generalised advantages: what a run's configuration gives, and which mistake gives what it has.

A_t follows from the token rewards, the critic's values, γ and λ, and is whitened over the batch
(`align.objective.gae`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from align.core.config_value import EffectiveConfig
from align.core.text import Text
from align.core.threshold import Threshold
from align.objective import mindspeed_rl
from align.objective.gae import gae
from align.objective.masked import masked_mean, masked_variance, scale_to_unit, whiten
from align.referee.step_batch import StepBatch
from align.rollout.advantage_formulas import NORMALIZATION, SCALED, SCORES_MOVED, Formula
from align.rollout.group_advantages import TOLERANCE

DISCOUNT, VALUES = "discount", "values"
TENSORS = ("token_level_rewards", "values", "response_mask", "advantages")
_USUAL = (1.0, 0.99, 0.98, 0.97, 0.95, 0.9, 0.0)
_ROWS = (1, -1)
_FLOAT32 = Threshold(1e-4, "float32 sums over a response of thousands of tokens, times ten")


@dataclass(frozen=True, slots=True)
class Declared:
    """How a configuration estimates advantages.

    Args:
        gamma, lam: a factor per token.
        steps_over: tokens that do not count are stepped over (not in MindSpeed-RL).
        narrow: values enter as the bfloat16 numbers that a critic in bfloat16 gives, and rewards as
            float32, so that products with γ are rounded; otherwise all is float64.
    """

    gamma: float
    lam: float
    steps_over: bool = True
    narrow: bool = False

    @property
    def text(self) -> str:
        """As a formula's name."""
        return f"whitened GAE with γ {self.gamma:g} and λ {self.lam:g}"

    def raw(self, rewards: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """[b, r], not whitened."""
        return self._both(rewards, values, mask)[0].double()

    def returns(self, rewards: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """[b, r]."""
        return self._both(rewards, values, mask)[1].double()

    def _both(self, rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.narrow:
            rewards, values = rewards.float(), values.bfloat16()
        if self.steps_over:
            return gae(rewards, values, mask, gamma=self.gamma, lam=self.lam)
        return mindspeed_rl.gae(rewards, values, gamma=self.gamma, lam=self.lam)

    def whitened(self, rewards: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """[b, r]."""
        raw = self._both(rewards, values, mask)[0]
        made = whiten(raw, mask) if self.steps_over else mindspeed_rl.whiten(raw, mask)
        return made.double()


def declared_estimate(config: EffectiveConfig) -> Declared | None:
    """Return what a configuration declares; None where it is not GAE."""
    values = {name: value.value for name, value in config.values.items()}
    gamma, lam = values.get("advantage.gamma"), values.get("advantage.lam")
    if values.get("advantage.estimator") != "gae":
        return None
    if not isinstance(gamma, int | float) or not isinstance(lam, int | float):
        return None
    is_verl = values.get("loss.options.definitions") != "mindspeed_rl"
    return Declared(float(gamma), float(lam), is_verl)


def as_computed(declared: Declared, batch: StepBatch) -> Declared:
    """Return the estimate in the arithmetic of a run: whichever gives more of its advantages."""
    found = batch.get(*TENSORS)
    if found is None or not _is_narrow(found[1]):
        return declared
    narrow = replace(declared, narrow=True)
    wide, rounded = (int(differing_tokens(batch, each).sum()) for each in (declared, narrow))
    return narrow if rounded < wide else declared


def differing_tokens(batch: StepBatch, declared: Declared) -> Tensor:
    """bool [b, r]: counting tokens whose recorded advantage is not the declared one."""
    rewards, values, mask, recorded = _tensors(batch)
    return _far(recorded, declared.whitened(rewards, values, mask), mask)


def differing_returns(batch: StepBatch, declared: Declared) -> Tensor:
    """bool [b, r]: counting tokens whose recorded return is not the declared one."""
    rewards, values, mask, _ = _tensors(batch)
    returns = batch.tensors.get("returns")
    if returns is None:
        return torch.zeros_like(mask, dtype=torch.bool)
    return _far(returns, declared.returns(rewards, values, mask), mask)


def are_whitened_returns(batch: StepBatch) -> bool:
    """Tell whether the returns are the values plus the recorded, whitened advantages."""
    _, values, mask, advantages = _tensors(batch)
    return not bool(_far(batch.tensors["returns"], values + advantages, mask).any())


def formula_of(batches: list[StepBatch], declared: Declared) -> Formula | None:
    """Return the mistake that gives every recorded advantage; None where not exactly one does."""
    tried = [list(_mistakes(batch, declared)) for batch in batches]
    fitting: dict[str, Formula] = {}
    for at, (formula, _) in enumerate(tried[0]):
        pairs = zip(batches, tried, strict=True)
        if not any(bool(_off(batch, mistakes[at][1]).any()) for batch, mistakes in pairs):
            fitting.setdefault(formula.kind, formula)
    if not fitting:
        return _scaled(batches, declared) or _scaled_by_row(batches, declared)
    return next(iter(fitting.values())) if len(fitting) == 1 else None


def _mistakes(batch: StepBatch, declared: Declared) -> Iterator[tuple[Formula, Tensor]]:
    rewards, values, mask, _ = _tensors(batch)
    raw = declared.raw(rewards, values, mask)
    yield Formula(NORMALIZATION, _NOT_WHITENED), raw
    yield Formula(NORMALIZATION, _ONLY_CENTRED), raw - masked_mean(raw, mask)
    yield Formula(NORMALIZATION, _OVER_N), _over_n(raw, mask)
    yield Formula(NORMALIZATION, _WITH_PADDING), whiten(raw, torch.ones_like(mask))
    for value in _USUAL:
        for sign, usual, other in (
            ("γ", declared.gamma, replace(declared, gamma=value)),
            ("λ", declared.lam, replace(declared, lam=value)),
        ):
            if other != declared:
                what = _discounts(sign, value, usual)
                yield Formula(DISCOUNT, what), other.whitened(rewards, values, mask)
    for what, other_values in (
        (_LATE, values.roll(-1, 1)),
        (_EARLY, values.roll(1, 1)),
        (_NO_VALUES, torch.zeros_like(values)),
        (_MOVED_VALUES, values.roll(1, 0)),
    ):
        yield Formula(VALUES, what), declared.whitened(rewards, other_values, mask)
    ends = declared.whitened(rewards + declared.gamma * _at_ends(values, mask), values, mask)
    yield Formula(VALUES, _AFTER_END), ends
    for count in _ROWS:
        moved = declared.whitened(rewards.roll(count, 0), values, mask)
        yield Formula(SCORES_MOVED, _MOVED_REWARDS), moved


def _scaled(batches: list[StepBatch], declared: Declared) -> Formula | None:
    recorded, expected = [], []
    for batch in batches:
        rewards, values, mask, own = _tensors(batch)
        recorded.append(own[mask.bool()])
        expected.append(declared.whitened(rewards, values, mask)[mask.bool()])
    mine, other = torch.cat(recorded), torch.cat(expected)
    square = float(other @ other)
    factor = float(mine @ other) / square if square else 0.0
    if factor == 0 or bool(_far(mine / factor, other, torch.ones_like(mine)).any()):
        return None
    return Formula(
        SCALED,
        Text(f"multiplies every advantage by {factor:.3g}", f"把所有 advantage 乘以 {factor:.3g}"),
    )


def _scaled_by_row(batches: list[StepBatch], declared: Declared) -> Formula | None:
    """Tell whether every row is its advantages, scaled and shifted: two numbers a row."""
    for batch in batches:
        rewards, values, mask, own = _tensors(batch)
        raw = declared.raw(rewards, values, mask)
        for mine, other, here in zip(own, raw, mask.bool(), strict=True):
            if not _is_scaled(mine[here], other[here]):
                return None
    return Formula(NORMALIZATION, _BY_ROW)


def _is_scaled(mine: Tensor, other: Tensor) -> bool:
    centred = other - other.mean()
    square = float(centred @ centred)
    factor = float(centred @ mine) / square if square else 0.0
    fitted = mine.mean() + factor * centred
    is_far = _far(mine, fitted, torch.ones_like(mine))
    return len(mine) < 3 or (factor > 0 and not bool(is_far.any()))


def _over_n(raw: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum()
    variance = masked_variance(raw, mask) * (count - 1) / count
    return scale_to_unit(raw, masked_mean(raw, mask), variance)


def _at_ends(values: Tensor, mask: Tensor) -> Tensor:
    """[b, r]: the value of each row's last counting token, at it; 0 elsewhere."""
    is_last = (mask != 0) & (mask.flip(1).cumsum(1).flip(1) == 1)
    return torch.where(is_last, values, 0.0)


def _off(batch: StepBatch, expected: Tensor) -> Tensor:
    _, _, mask, recorded = _tensors(batch)
    return _far(recorded, expected, mask)


def _far(recorded: Tensor, expected: Tensor, mask: Tensor) -> Tensor:
    apart = (recorded - expected).abs()
    allowed = TOLERANCE.value if _is_narrow(recorded[mask.bool()]) else _FLOAT32.value
    return mask.bool() & ~(apart <= allowed * expected.abs().clamp(min=1.0))


def _is_narrow(numbers: Tensor) -> bool:
    """Tell whether bfloat16 holds all of them."""
    return bool((numbers.bfloat16().to(numbers.dtype) == numbers).all())


def _tensors(batch: StepBatch) -> tuple[Tensor, ...]:
    found = batch.get(*TENSORS)
    assert found is not None
    return found


def _discounts(sign: str, value: float, usual: float) -> Text:
    return Text(
        f"discounts with {sign} = {value:g}, where {usual:g} is configured",
        f"以 {sign} = {value:g} 折扣，而配置为 {usual:g}",
    )


_NOT_WHITENED = Text("does not whiten", "没有做白化")
_ONLY_CENTRED = Text("subtracts the mean and divides by no deviation", "只减去均值，未除以标准差")
_OVER_N = Text("whitens with the variance over n, not n - 1", "白化时方差除以 n，而非 n - 1")
_WITH_PADDING = Text("whitens over the padding too", "白化时把 padding 也计算在内")
_BY_ROW = Text(
    "scales and shifts each row by itself, where the batch is whitened",
    "逐行缩放与平移，而应对整个 batch 做白化",
)
_AFTER_END = Text(
    "gives the last token a next value, its own", "把最后一个 token 自身的 value 当作其后的 value"
)
_LATE = Text("takes each token's value from the token after", "使用了后一个 token 的 value")
_EARLY = Text("takes each token's value from the token before", "使用了前一个 token 的 value")
_NO_VALUES = Text("takes every value to be 0", "把所有 value 当作 0")
_MOVED_VALUES = Text("takes the values of the row before", "使用了前一行的 value")
_MOVED_REWARDS = Text("takes the rewards of another row", "使用了别的行的奖励")
