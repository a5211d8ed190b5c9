"""Other losses that people have computed by mistake, one change from the declared one each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product

from align.core.text import Text
from align.objective.aggregate import LossAggregation
from align.referee.objective import Normalisation, Objective

_ESTIMATORS = {"k1": ("kl", "k1"), "abs": ("abs",), "k2": ("mse", "k2"), "k3": ("low_var_kl", "k3")}
_FREE = math.inf
ClipRange = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A formula that would explain recorded numbers which the declared one does not give.

    Args:
        id: of the finding, such as "loss.kl_sign".
        what: what is computed instead, as a clause after "the run".
        objective: the formula.
        fix: what to look at.
    """

    id: str
    what: Text
    objective: Objective
    fix: Text


def hypotheses(declared: Objective, ranges: Iterable[ClipRange] = ()) -> Iterator[Hypothesis]:
    """Yield every other formula, those that coincide with the declared one left out.

    Args:
        ranges: of the ratio's clipping, to be tried besides the usual ones.
    """
    every = (
        _of_kl(declared),
        _of_aggregation(declared),
        _of_clipping(declared, ranges),
        _of_entropy(declared),
        _of_the_rest(declared),
    )
    return (each for each in chain(*every) if each.objective != declared)


def _of_kl(declared: Objective) -> Iterator[Hypothesis]:
    coefficient = declared.kl_coef
    if not coefficient:
        return
    yield Hypothesis(
        "loss.kl_sign",
        Text("subtracts the KL term, which must be added", "减去了 KL 项，而它应当被加上"),
        replace(declared, kl_coef=-coefficient),
        Text(
            f"Look at the line that adds {coefficient:g} · KL to the policy loss: its sign is "
            "wrong, so distance from the reference model is rewarded.",
            f"检查把 {coefficient:g} · KL 加到策略损失的那一行：符号错误，"
            "远离参考模型反而得到奖励。",
        ),
    )
    yield Hypothesis(
        "loss.kl_sign",
        Text("has the sign of the KL wrong", "KL 的符号相反"),
        replace(declared, kl_sign=-1),
        Text(
            "Look at the function that estimates the KL of a token and at the sign it returns: "
            "distance from the reference model is rewarded.",
            "检查逐 token 估计 KL 的函数及其返回值的符号：远离参考模型反而得到奖励。",
        ),
    )
    yield Hypothesis(
        "loss.kl_missing",
        Text("leaves the KL term out of the loss", "没有把 KL 项计入损失"),
        replace(declared, kl_coef=0.0),
        Text(
            "Look for the switch that adds the KL to the loss; the configuration says it is on.",
            "检查把 KL 计入损失的开关；配置中它是打开的。",
        ),
    )
    for name, spellings in _ESTIMATORS.items():
        if declared.kl_type.removesuffix("+") not in spellings:
            yield _estimator(name, replace(declared, kl_type=name))
    turned = replace(declared, kl_reversed=True)
    yield _estimator(f"{declared.kl_type} of the reversed ratio", turned)


def _estimator(name: str, objective: Objective) -> Hypothesis:
    return Hypothesis(
        "loss.kl_estimator",
        Text(f"estimates the KL with {name}", f"用 {name} 估计 KL"),
        objective,
        Text(
            "Look at the function that estimates the KL of a token, and at the order of its two "
            "arguments.",
            "检查逐 token 估计 KL 的函数，以及两个参数的顺序。",
        ),
    )


def _of_aggregation(declared: Objective) -> Iterator[Hypothesis]:
    for normalisation in Normalisation:
        for mode in LossAggregation:
            if (mode, normalisation) == (declared.aggregation, declared.normalisation):
                continue
            yield Hypothesis(
                "loss.aggregation",
                _averaging(mode, normalisation),
                replace(declared, aggregation=mode, normalisation=normalisation),
                Text(
                    "Look at the denominator: the configuration asks for "
                    f"{declared.aggregation.value} over the {declared.normalisation.value}. With "
                    "several micro-batches their sums of losses must be divided by the counts of "
                    "that batch.",
                    f"检查分母：配置要求在 {declared.normalisation.value} 内做 "
                    f"{declared.aggregation.value}。存在多个 micro-batch 时，"
                    "各自的损失之和必须除以该批次的总数。",
                ),
            )


def _averaging(mode: LossAggregation, normalisation: Normalisation) -> Text:
    return Text(
        f"computes {mode.value} within the {normalisation.value}",
        f"在 {normalisation.value} 内做 {mode.value}",
    )


def _of_clipping(declared: Objective, ranges: Iterable[ClipRange]) -> Iterator[Hypothesis]:
    low, high = declared.clip_low, declared.clip_high
    one_sided = ((1.0, high), (low, _FREE), (1.0, _FREE))
    usual = ((low, low), (high, high), (high, low), (0.2, 0.2), *one_sided)
    for lower, upper in dict.fromkeys((*usual, *ranges)):
        shown = f"[{1 - lower:g}, {'∞' if upper == _FREE else f'{1 + upper:g}'}]"
        yield Hypothesis(
            "loss.clip_range",
            Text(f"clips the ratio to {shown}", f"把 ratio 裁剪到 {shown}"),
            replace(declared, clip_low=lower, clip_high=upper),
            Text(
                f"The configuration says [{1 - low:g}, {1 + high:g}]: look at what reads its "
                "clip_ratio_low and clip_ratio_high.",
                f"配置为 [{1 - low:g}, {1 + high:g}]：检查读取 clip_ratio_low 与 clip_ratio_high "
                "的代码。",
            ),
        )
    for dual in (None, 3.0):
        yield Hypothesis(
            "loss.dual_clip",
            Text(
                f"bounds negative advantages at {dual or 'nothing'}",
                f"对负 advantage 的上界为 {dual or '无'}",
            ),
            replace(declared, dual=dual),
            Text(
                "Look at the dual clip: verl bounds tokens of negative advantage at clip_ratio_c, "
                "MindSpeed-RL has no such bound.",
                "检查 dual clip：verl 用 clip_ratio_c 限制负 advantage 的 token，"
                "MindSpeed-RL 没有该上界。",
            ),
        )


def _of_entropy(declared: Objective) -> Iterator[Hypothesis]:
    coefficient = declared.entropy_coef
    fix = Text(
        f"The policy loss subtracts {coefficient:g} · entropy: look at that line.",
        f"策略损失应减去 {coefficient:g} · 熵：检查这一行。",
    )
    yield Hypothesis(
        "loss.entropy_sign",
        Text("adds the entropy, which must be subtracted", "加上了熵，而它应当被减去"),
        replace(declared, entropy_coef=-coefficient if coefficient else 0.0),
        fix,
    )
    yield Hypothesis(
        "loss.entropy_missing",
        Text("leaves the entropy out of the loss", "没有把熵计入损失"),
        replace(declared, entropy_coef=0.0),
        fix,
    )


def _of_the_rest(declared: Objective) -> Iterator[Hypothesis]:
    yield Hypothesis(
        "loss.policy_sign",
        Text("has the sign of the policy loss wrong", "策略损失的符号相反"),
        replace(declared, policy_sign=-declared.policy_sign),
        Text("The loss is minus advantage times ratio.", "损失应为 -advantage × ratio。"),
    )
    yield Hypothesis(
        "loss.mode",
        Text(
            f"takes the ratio of a {'token' if declared.gspo else 'sequence'}",
            f"ratio 按{' token ' if declared.gspo else '序列'}计算",
        ),
        replace(declared, gspo=not declared.gspo),
        Text("Look at policy_loss.loss_mode.", "检查 policy_loss.loss_mode。"),
    )
    yield Hypothesis(
        "loss.old_log_probs",
        Text(
            "takes the update's own log_probs for old_log_probs, so that every ratio is 1",
            "把本次更新自身的 log_probs 当作 old_log_probs，因此 ratio 恒为 1",
        ),
        replace(declared, own_ratio=True),
        Text(
            "old_log_probs are of the weights before the step's first update; look at where they "
            "are computed or replaced.",
            "old_log_probs 属于本步第一次更新之前的权重；检查计算或替换它的位置。",
        ),
    )
    for columns, counts in product((-1, 1), (True, False)):
        yield Hypothesis(
            "loss.mask_shifted",
            Text(
                f"moves the response mask by {columns:+d} token",
                f"response_mask 偏移了 {columns:+d} 个 token",
            ),
            replace(declared, mask_shift=columns, counts_shifted=counts),
            Text(
                "Look at the slice that cuts responses out of the sequence: logits of position "
                "i choose token i + 1.",
                "检查从序列中截取回复的切片：位置 i 的 logits 决定第 i + 1 个 token。",
            ),
        )
    for columns, where, where_zh in ((-1, "after", "后"), (1, "before", "前")):
        yield Hypothesis(
            "loss.advantages_moved",
            Text(
                f"gives each token the advantage of the token {where}",
                f"每个 token 用的是{where_zh}一个 token 的 advantage",
            ),
            replace(declared, advantage_shift=columns),
            Text(
                "Look at what cuts and shifts columns between the batch and the loss: log_probs, "
                "mask and advantages must be indexed alike.",
                "检查 batch 与损失之间截取、移动列的代码："
                "log_probs、mask 与 advantage 须用同一索引。",
            ),
        )
    if declared.correction is not None:
        yield Hypothesis(
            "loss.rollout_correction",
            Text("leaves the importance weights out", "没有乘以重要性权重"),
            replace(declared, correction=None),
            Text("Look at algorithm.rollout_correction.", "检查 algorithm.rollout_correction。"),
        )
