"""What is said of two critics that part."""

from __future__ import annotations

import numpy as np

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.referee.critic import Critic
from align.referee.critic_distance import TIMES
from align.referee.critic_updates import CriticUpdate
from align.rollout.trainer_pair import TrainerPair
from dumps.readers.safetensors_numbers import are_bfloat16

_MECHANISM = Mechanism(Rung.LOSS, Strength.SEMANTIC, ("critic/*",))
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def values_finding(pair: TrainerPair, step: int, apart: float, limit: float) -> Finding:
    both = pair.both("values")
    assert both is not None
    narrow = [are_bfloat16(values) for values in both]
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
        severity=Severity.ERROR if apart > TIMES * limit else Severity.WARNING,
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


def gradient_finding(own: CriticUpdate, other: CriticUpdate, step: int, number: int) -> Finding:
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


def update_finding(
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
