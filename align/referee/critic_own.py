"""What one run's critic must hold by itself: its configured loss, and a first pass that agrees."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.objective.value_loss import clipped_value_loss
from align.referee.critic import Critic
from align.referee.critic_distance import SAME_VALUES, TIMES, rounding_of
from align.referee.critic_updates import CriticUpdate
from align.rollout.trainer_pair import trainer_pair
from dumps.readers.safetensors_numbers import are_bfloat16

_OWN_LOSS = Threshold(1e-3, "a sum in float32 or of bfloat16 predictions, against float64")
_MECHANISM = Mechanism(Rung.LOSS, Strength.SEMANTIC, ("critic/*",))
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def own_loss(both: list[Critic]) -> Finding | None:
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
    step, batch = 0, None
    for update in critic.updates:
        if update.step != step:  # the updates of a step share its batch
            step, batch = update.step, trainer_pair(critic.run, critic.run, update.step)
        if batch is not None and not _are_its_rows(update, batch.reference):
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
    known = _pairs(batch["values"][own], batch["returns"][own])
    return bool(np.isin(_pairs(update.values.numpy(), update.returns.numpy()), known).all())


def _pairs(
    values: npt.NDArray[np.generic], returns: npt.NDArray[np.generic]
) -> npt.NDArray[np.uint64]:
    """Return the bits of both in float32, as one number a token."""
    both = np.stack([values.astype(np.float32), returns.astype(np.float32)], axis=-1)
    bits: npt.NDArray[np.uint64] = both.view(np.uint64)[..., 0]
    return bits


def own_pass(reference: Critic, candidate: Critic) -> Finding | None:
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
        limit = max(SAME_VALUES.value, TIMES * worst[other.side])
        for update, far in apart[critic.side]:
            values = update.values.numpy()
            rounding = rounding_of(values) if are_bfloat16(values) else 0.0
            if far > max(limit, rounding):
                return pass_finding(critic, other, update, far, limit)
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


def pass_finding(
    critic: Critic, other: Critic, update: CriticUpdate, far: float, limit: float
) -> Finding:
    side, of_values = critic.side, _are_values_others(update, other)
    what = _OTHER_WEIGHTS if of_values else _OTHER_PASS
    return Finding(
        id="loss.critic_values" if of_values else "loss.training_pass",
        rung=Rung.LOSS,
        severity=Severity.ERROR if far > TIMES * limit else Severity.WARNING,
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
