"""Loss rung of PPO: where the critics of two runs part.

The critic is a training run of its own beside the policy's: values from its weights, a loss from
predictions and returns, a gradient from the loss, an update from the gradient. The walk along these
stops at the first that differs though everything before it agrees; a loss is also held against
what the run's own configuration gives. Nothing is judged where the two runs trained on other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice, zip_longest

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from align.config.normalise import effective
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.threshold import Threshold
from align.objective.aggregate import LossAggregation
from align.objective.value_loss import clipped_value_loss
from align.referee.critic_updates import CriticUpdate, critic_updates
from align.referee.gradient_norms import SAME_NORM
from align.rollout.trainer_pair import TrainerPair, trainer_pair
from dumps.store.run_data import RunData

SAME_VALUES = Threshold(1e-3, "what gradients accumulate in float32 over another order, times ten")
_NARROW = Threshold(2.0**-6, "four bfloat16 roundings (2^-8 each) of values kept in it")
_SAME_ROWS = Threshold(0.05, "of the spread: other rows of a batch are apart by all of it")
_OWN_LOSS = Threshold(1e-3, "a sum in float32 or of bfloat16 predictions, against float64")
_TIMES = 10  # of what the values, or the policies' log_probs, differ by already
_STEPS = 8
_MECHANISM = Mechanism(Rung.LOSS, Strength.SEMANTIC, ("critic/*",))
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Critic:
    """One run's critic."""

    side: Side
    run: RunData
    updates: tuple[CriticUpdate, ...]
    clip_range: float | None

    def of_step(self, step: int) -> list[CriticUpdate]:
        """Return a step's updates."""
        return [update for update in self.updates if update.step == step]


def compare_critics(reference: RunData, candidate: RunData) -> RungResult | None:
    """Walk along both critics; None where either is not recorded."""
    both = [
        Critic(side, run, _first_updates(run), _clip_range(run))
        for side, run in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    ]
    if not all(critic.updates for critic in both):
        return None
    finding = _own_loss(both) or _own_pass(*both) or _walk(*both)
    if finding is None:
        return RungResult(Rung.LOSS, RungStatus.ALIGNED, _ALIGNED)
    summary = Text(
        f"{finding.title.en[:1].upper()}{finding.title.en[1:]}.", f"{finding.title.zh}。"
    )
    is_error = finding.severity is Severity.ERROR
    status = RungStatus.DIVERGED if is_error else RungStatus.UNDECIDED
    return RungResult(Rung.LOSS, status, summary, (finding,))


def _first_updates(run: RunData) -> tuple[CriticUpdate, ...]:
    """Return the updates of the first recorded steps: two critics part there, or by rounding."""
    by_step = groupby(critic_updates(run), key=lambda update: update.step)
    return tuple(update for _, own in islice(by_step, _STEPS) for update in own)


def _clip_range(run: RunData) -> float | None:
    """Return critic.cliprange_value; None where it is not known, or the loss is another one."""
    values = effective(run.configs, run.run.manifest).values
    clip, mode = values.get("critic.clip_range"), values.get("critic.loss_agg_mode")
    if clip is None or not isinstance(clip.value, int | float):
        return None
    if mode is not None and mode.value != LossAggregation.TOKEN_MEAN.value:
        return None
    return float(clip.value)


def _own_loss(both: list[Critic]) -> Finding | None:
    """Name the run whose value loss, or whose targets, are not its own configuration's."""
    wrong = [(critic, what) for critic in both if (what := _misfit(critic)) is not None]
    if len(wrong) != 1:
        return None
    critic, (update, declared, text) = wrong[0]
    numbers = (update.loss, declared)
    return Finding(
        id="loss.value_loss",
        rung=Rung.LOSS,
        severity=Severity.ERROR,
        title=Text(
            f"the {critic.side.value}'s critic {text.en} (step {update.step}, update "
            f"{update.number + 1})",
            f"{_ZH[critic.side]}的 critic {text.zh}"
            f"（第 {update.step} 步第 {update.number + 1} 次更新）",
        ),
        reference=numbers[critic.side is Side.CANDIDATE],
        candidate=numbers[critic.side is Side.REFERENCE],
        evidence=(
            Evidence(update.source, critic.side, key="value_loss", values=(update.loss,)),
            Evidence(
                "half the greater of (vpreds - returns)² and its clipped form, mean over tokens",
                critic.side,
                key="value_loss",
                values=(declared,),
            ),
        ),
        why=Text(
            "Values are learned from other targets, or with another bound, than configured; "
            "advantages of the next steps follow them. The other run's loss is as configured.",
            "value 学习所用的目标或裁剪与配置不符，之后各步的 advantage 随之改变；"
            "另一侧与配置一致。",
        ),
        fix=Text(
            "Compare what the value loss is given: returns of the same rows, and "
            "critic.cliprange_value.",
            "请对照 value 损失的输入：同一行的 returns，以及 critic.cliprange_value。",
        ),
        mechanism=_MECHANISM,
    )


def _misfit(critic: Critic) -> tuple[CriticUpdate, float, Text] | None:
    for update in critic.updates:
        pairs = trainer_pair(critic.run, critic.run, update.step)
        if pairs is not None and not _are_its_rows(update, pairs.reference):
            declared = _loss(update, critic.clip_range or np.inf)
            return update, declared, _OTHER_TARGETS
        if critic.clip_range is None:
            continue
        declared = _loss(update, critic.clip_range)
        if abs(update.loss - declared) > _OWN_LOSS.value * abs(declared):
            return update, declared, _OTHER_LOSS
    return None


def _loss(update: CriticUpdate, clip_range: float) -> float:
    predictions, values, returns = (
        tensor[None] for tensor in (update.predictions, update.values, update.returns)
    )
    every = torch.ones_like(values)
    made = clipped_value_loss(predictions, values, returns, every, cliprange_value=clip_range)
    return float(made.loss)


def _are_its_rows(update: CriticUpdate, batch: Mapping[str, npt.NDArray[np.generic]]) -> bool:
    """Tell whether every (value, return) of an update is one of its step's batch."""
    if any(name not in batch for name in ("values", "returns", "response_mask")):
        return True
    own = batch["response_mask"] != 0
    known = set(_pairs(batch["values"][own], batch["returns"][own]))
    return all(pair in known for pair in _pairs(update.values.numpy(), update.returns.numpy()))


def _pairs(values: npt.NDArray[np.generic], returns: npt.NDArray[np.generic]) -> Iterator[bytes]:
    both = np.stack([values.astype(np.float32), returns.astype(np.float32)], axis=-1)
    return (row.tobytes() for row in both)


def _own_pass(reference: Critic, candidate: Critic) -> Finding | None:
    """Name the one run whose critic first learns from other predictions than its values.

    A step's first update has the weights that its values were computed with.
    """
    apart = {
        critic.side: [
            (update, _spread_apart(update)) for update in critic.updates if _is_first(update)
        ]
        for critic in (reference, candidate)
    }
    worst = {side: max((far for _, far in found), default=0.0) for side, found in apart.items()}
    for critic, other in ((reference, candidate), (candidate, reference)):
        limit = max(SAME_VALUES.value, _TIMES * worst[other.side])
        for update, far in apart[critic.side]:
            if far > limit and not (_is_narrow(update.values.numpy()) and far <= _NARROW.value):
                return _pass_finding(critic, other, update, far, limit)
    return None


def _is_first(update: CriticUpdate) -> bool:
    return update.number == 0


def _spread_apart(update: CriticUpdate) -> float:
    spread = float((update.values - update.values.mean()).norm())
    return float((update.predictions - update.values).norm()) / spread if spread else 0.0


def _are_values_others(update: CriticUpdate, other: Critic) -> bool:
    """Tell whether, of values and predictions, the values are less like the other run's."""
    peers = [each for each in other.of_step(update.step) if _is_first(each)]
    if not peers or len(peers[0].values) != len(update.values):
        return update.step > other.updates[0].step
    peer = peers[0]
    values, predictions = (
        float((mine.sort().values - its.sort().values).norm())
        for mine, its in ((update.values, peer.values), (update.predictions, peer.predictions))
    )
    return values > predictions


def _pass_finding(
    critic: Critic, other: Critic, update: CriticUpdate, far: float, limit: float
) -> Finding:
    side, of_values = critic.side, _are_values_others(update, other)
    what = _OTHER_WEIGHTS if of_values else _OTHER_PASS
    return Finding(
        id="loss.critic_values" if of_values else "loss.training_pass",
        rung=Rung.LOSS,
        severity=Severity.ERROR if far > _TIMES * limit else Severity.WARNING,
        title=Text(
            f"the {side.value}'s critic {what.en} (step {update.step}): {far:.2g} of their spread",
            f"{_ZH[side]}的 critic {what.zh}（第 {update.step} 步）：相差其离散程度的 {far:.2g}",
        ),
        reference=far if side is Side.REFERENCE else 0.0,
        candidate=far if side is Side.CANDIDATE else 0.0,
        evidence=tuple(
            Evidence(update.source, side, key=f"update.{update.number}.micro.*.{name}")
            for name in ("vpreds", "values")
        ),
        why=Text(
            "No update lies between the values of a step and its first update, so both must be "
            "the same numbers, as they are in the other run.",
            "一步的 value 与其第一次更新之间没有更新，两者应相同，另一侧确实相同。",
        ),
        fix=_OTHER_WEIGHTS_FIX if of_values else _OTHER_PASS_FIX,
        mechanism=_MECHANISM,
    )


def _walk(reference: Critic, candidate: Critic) -> Finding | None:
    """Go along the steps both record, from the first on."""
    steps = {update.step for update in reference.updates}
    common = sorted(steps & {update.step for update in candidate.updates})
    allowed = SAME_VALUES.value
    for number, step in enumerate(common):
        pair = trainer_pair(reference.run, candidate.run, step)
        if pair is None:
            return None
        values = pair.both("values")
        if values is not None:
            apart, limit = _relative(*values, pair), _limit(*values, pair)
            if number == 0 and apart > limit:
                return _values_finding(pair, step, apart, limit)
            if apart > max(limit, allowed):
                return _update_finding(reference, candidate, step, None, apart)
            allowed = max(allowed, _TIMES * apart)
        if not _same_targets(pair):
            return None
        found = _updates_apart(reference, candidate, step, allowed)
        if found is not None:
            return found
    return None


def _updates_apart(
    reference: Critic, candidate: Critic, step: int, allowed: float
) -> Finding | None:
    """Name the first loss or gradient of a step that differs; the rows of both are the same."""
    pairs = zip_longest(reference.of_step(step), candidate.of_step(step))
    for number, (own, other) in enumerate(pairs):
        if own is None or other is None or not _same_rows(own, other):
            return None
        apart = _ratio(own.loss, other.loss)
        if apart > allowed:
            return _update_finding(reference, candidate, step, number, apart) if number else None
        if own.norm is not None and other.norm is not None:
            limit = max(SAME_NORM.value, allowed)
            if _ratio(own.norm, other.norm) > limit:
                return _gradient_finding(own, other, step, number)
    return None


def _same_rows(own: CriticUpdate, other: CriticUpdate) -> bool:
    """Tell whether two updates learn from the same tokens: as many, and of equal targets."""
    if len(own.returns) != len(other.returns):
        return False
    return _same_multiset(own.returns, other.returns) and _same_multiset(own.values, other.values)


def _same_multiset(one: Tensor, other: Tensor) -> bool:
    apart = (one.sort().values - other.sort().values).norm()
    return bool(apart <= _SAME_ROWS.value * (one - one.mean()).norm())


def _same_targets(pair: TrainerPair) -> bool:
    both = pair.both("returns")
    return both is not None and _relative(*both, pair) <= _SAME_ROWS.value


def _relative(
    one: npt.NDArray[np.generic], other: npt.NDArray[np.generic], pair: TrainerPair
) -> float:
    """‖other - one‖ over the spread of one, over counting tokens."""
    mine, its = _counting(one, other, pair)
    spread = float(np.linalg.norm(mine - mine.mean()))
    apart = float(np.linalg.norm(mine - its))
    return apart / spread if spread else (0.0 if apart == 0 else np.inf)


def _counting(
    one: npt.NDArray[np.generic], other: npt.NDArray[np.generic], pair: TrainerPair
) -> tuple[Array, Array]:
    masks = pair.both("response_mask")
    here = np.ones(one.shape, bool) if masks is None else (masks[0] != 0) & (masks[1] != 0)
    return one[here].astype(np.float64), other[here].astype(np.float64)


def _limit(
    one: npt.NDArray[np.generic], other: npt.NDArray[np.generic], pair: TrainerPair
) -> float:
    """Return how far values may be apart: as the policies' log_probs are, ten times."""
    policies = pair.both("old_log_probs")
    noise = 0.0 if policies is None else _relative(*policies, pair)
    narrow = all(_is_narrow(values) for values in (one, other))
    return max(SAME_VALUES.value, _TIMES * noise, _NARROW.value if narrow else 0.0)


def _is_narrow(values: npt.NDArray[np.generic]) -> bool:
    """Tell whether bfloat16 holds all values."""
    bits = np.ascontiguousarray(values.astype(np.float32)).view(np.uint32)
    return bool(np.all(bits & np.uint32(0xFFFF) == 0))


def _ratio(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), 1e-30)


def _values_finding(pair: TrainerPair, step: int, apart: float, limit: float) -> Finding:
    both = pair.both("values")
    assert both is not None
    narrow = [_is_narrow(values) for values in both]
    rounded = narrow[0] != narrow[1]
    side = Side.REFERENCE if narrow[0] else Side.CANDIDATE
    title = Text(
        f"the critics give other values for the same tokens at step {step}, the first that is "
        f"recorded: {apart:.2g} of their spread",
        f"在记录的首步（第 {step} 步），两侧 critic 对相同 token 给出的 value 不同："
        f"相差其离散程度的 {apart:.2g}",
    )
    if rounded:
        title = Text(
            f"{title.en}; the {side.value}'s are rounded to bfloat16",
            f"{title.zh}；{_ZH[side]}的 value 被舍入到 bfloat16",
        )
    return Finding(
        id="loss.critic_values",
        rung=Rung.LOSS,
        severity=Severity.ERROR if apart > _TIMES * limit else Severity.WARNING,
        title=title,
        reference=0.0,
        candidate=apart,
        evidence=_sources(pair.source, "values"),
        why=Text(
            "Advantages and returns are made of these values: the critics differ in their "
            "weights, their model's code or their dtype. A value head that a checkpoint lacks is "
            "drawn at random.",
            "advantage 与 return 由这些 value 得到：两侧 critic 的权重、模型代码或数据类型不同。"
            "检查点中没有的 value head 会被随机初始化。",
        ),
        fix=Text(
            "Start both critics from one checkpoint that has the value head, in one dtype; then "
            "compare critic.model's path and overrides.",
            "让两侧 critic 从同一个带 value head 的检查点、以相同数据类型开始；"
            "再对照 critic.model 的路径与覆盖项。",
        ),
        mechanism=_MECHANISM,
    )


def _gradient_finding(own: CriticUpdate, other: CriticUpdate, step: int, number: int) -> Finding:
    assert own.norm is not None and other.norm is not None
    ratio = other.norm / own.norm if own.norm else np.inf
    return Finding(
        id="loss.critic_gradient",
        rung=Rung.LOSS,
        severity=Severity.ERROR,
        title=Text(
            f"the critics' losses agree and their gradients do not: the candidate's norm is "
            f"{ratio:.3g} times the reference's at step {step}, update {number + 1}",
            f"两侧 critic 的损失一致而梯度不同：第 {step} 步第 {number + 1} 次更新，"
            f"被测的梯度范数是参考的 {ratio:.3g} 倍",
        ),
        reference=own.norm,
        candidate=other.norm,
        evidence=_sources((own.source, other.source), "grad_norm"),
        why=Text(
            "Predictions, targets and loss are the same, so the difference is made on the way "
            "back: a factor between loss and gradient, a lost micro-batch, a part without "
            "gradient.",
            "预测、目标与损失都相同，因此差异产生于反向：损失与梯度之间的系数、丢失的 micro-batch，"
            "或没有梯度的部分。",
        ),
        fix=Text(
            "Compare the critic's loss scaling, gradient accumulation and frozen parameters.",
            "请对照 critic 的损失缩放、梯度累积与被冻结的参数。",
        ),
        mechanism=_MECHANISM,
    )


def _update_finding(
    reference: Critic, candidate: Critic, step: int, number: int | None, apart: float
) -> Finding:
    sources = [
        next(update.source for update in critic.updates if update.step <= step)
        for critic in (reference, candidate)
    ]
    when = "before its first update" if number is None else f"at update {number + 1}"
    when_zh = "首次更新之前" if number is None else f"第 {number + 1} 次更新时"
    return Finding(
        id="loss.critic_update",
        rung=Rung.LOSS,
        severity=Severity.ERROR,
        title=Text(
            f"an update of equal gradients moved the critics apart: by {apart:.2g}, relative, at "
            f"step {step}, {when}",
            f"梯度相同的一次更新使两侧 critic 分开：第 {step} 步{when_zh}相对差 {apart:.2g}",
        ),
        reference=0.0,
        candidate=apart,
        evidence=_sources((sources[0], sources[1]), "vpreds"),
        why=Text(
            "Up to that update values, losses and gradient norms agree, so its optimizer did "
            "something else: learning rate, clipping, Adam's constants, or no step at all.",
            "在该次更新之前，value、损失与梯度范数都一致，因此是优化器的差异：学习率、梯度裁剪、"
            "Adam 的常数，或根本没有更新。",
        ),
        fix=Text(
            "Compare critic.optim (lr, warm-up, weight decay, betas, eps), critic.grad_clip and "
            "critic_warmup, and whether every update steps.",
            "请对照 critic.optim（lr、warmup、weight decay、betas、eps）、critic.grad_clip 与 "
            "critic_warmup，以及是否每次都执行了更新。",
        ),
        mechanism=_MECHANISM,
    )


def _sources(sources: tuple[str, str], key: str) -> tuple[Evidence, ...]:
    sides = (Side.REFERENCE, Side.CANDIDATE)
    return tuple(Evidence(s, side, key=key) for s, side in zip(sources, sides, strict=True))


_ALIGNED = Text(
    "The critics' losses are as configured, and nothing of them differs where both runs trained on "
    "the same rows.",
    "两侧 critic 的损失与配置相符；在两侧训练相同数据行的范围内没有差异。",
)
_OTHER_WEIGHTS = Text(
    "gives values that are not of the weights it then trains", "给出的 value 不属于随后训练的权重"
)
_OTHER_PASS = Text(
    "predicts other values where it learns than it gave before",
    "训练时的预测与此前给出的 value 不同",
)
_OTHER_WEIGHTS_FIX = Text(
    "Look at which weights the pass that computes values has, and when they reach it.",
    "检查计算 value 的前向使用哪一份权重，以及权重何时同步过去。",
)
_OTHER_PASS_FIX = Text(
    "Look for what is on in training alone: dropout, another kernel or dtype, another mask.",
    "检查只在训练时启用的部分：dropout、另一种 kernel 或数据类型、另一种 mask。",
)
_OTHER_TARGETS = Text(
    "learns returns that are not those of its rows", "学习的 return 不属于其所在的行"
)
_OTHER_LOSS = Text(
    "has another loss than its predictions, returns and clip range give",
    "的损失与其预测、return 与裁剪范围给出的不符",
)
