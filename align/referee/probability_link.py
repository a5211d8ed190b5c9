"""The trainer's log_probs beside the rollout engine's, before any update, and what shape they have.

Of equal models and settings the two differ by rounding. A slope other than 1 is a temperature; a
difference on one side alone is log S of a truncated vocabulary (top-p, top-k); one at the first
token alone is the prompt's end or the first decoding step; log_probs that agree once moved by one
token are masked or labelled one off; one at the ends of equal chunks alone is context parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from align.core.config_value import EffectiveConfig
from align.core.text import Text
from align.referee.gradient_norms import SAME_LOG_PROBS
from align.referee.link import Link, LinkVerdict, not_recorded
from align.referee.probability_places import context_parallel_size, first_tokens, shift_of
from align.referee.probability_slope import Slope, Survivors, slope_between, survivors
from align.referee.step_batch import StepBatch

NAME = "log_probs, trainer - rollout"
_MARGIN = 1.05  # one temperature step people use: 1.0 against 0.95

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def probability_link(batch: StepBatch, config: EffectiveConfig) -> Link:
    """Compare both log_probs of every response token: mean absolute difference against 0."""
    values = {name: value.value for name, value in config.values.items()}
    temperature, top_p = values.get("rollout.temperature"), values.get("rollout.top_p")
    declared = Text(
        f"temperature {temperature}, top_p {top_p}", f"温度 {temperature}，top_p {top_p}"
    )
    found = batch.get("old_log_probs", "rollout_log_probs", "response_mask")
    if found is None:
        return not_recorded(NAME, declared, _NEEDS)
    trainer, rollout, mask = (tensor.numpy() for tensor in found)
    own = mask != 0
    if not own.any():
        return not_recorded(NAME, declared, _NEEDS)
    apart = trainer - rollout
    mean, limit = float(np.abs(apart)[own].mean()), SAME_LOG_PROBS.value
    attention = batch.tensors.get("attention_mask")
    # a few tokens of long rows do not move the mean
    note = place_of(apart, own, None if attention is None else attention.numpy())
    as_declared = note is None and mean <= limit
    if note is None and mean > limit:
        cut = _cut(trainer, rollout, own)
        as_declared = cut is not None and _is_declared(cut, values)
        note = shape_of(trainer, rollout, own, temperature=_number(temperature))
    verdict = LinkVerdict.AS_DECLARED if as_declared else LinkVerdict.DIFFERS
    return Link(NAME, declared, verdict, mean, 0.0, limit, note)


def place_of(
    apart: FloatArray, own: BoolArray, attention: npt.NDArray[np.generic] | None
) -> Text | None:
    """Say at which tokens alone the difference lies; None where it lies everywhere.

    Args:
        apart: float64 [b, r], trainer less rollout, nats.
        own: bool [b, r], where a token counts.
        attention: [b, p + r], not 0 where there is a token; None where it is not recorded.
    """
    first = first_tokens(apart, own)
    if first is not None:
        return Text(
            f"the first token alone differs, by {first:.3g} nats on average: the prompt's end, or "
            "prefill against decoding",
            f"仅首个 token 不同，平均相差 {first:.3g} nat：prompt 结尾不同，或预填充与解码不一致",
        )
    if attention is None or attention.ndim != 2 or attention.shape[1] < own.shape[1]:
        return None
    size = context_parallel_size(apart, own, attention != 0)
    if size is None:
        return None
    return Text(
        f"at the ends of {2 * size} equal chunks of a row alone: labels or logits are lost "
        f"between the parts of a context parallel size of {size}",
        f"仅在每行 {2 * size} 个等长分块的边界处不同："
        f"上下文并行（大小 {size}）的各部分之间丢失了标签或 logits",
    )


def shape_of(
    trainer: FloatArray, rollout: FloatArray, own: BoolArray, *, temperature: float | None = None
) -> Text:
    """Say what differences look like that lie everywhere.

    Args:
        trainer, rollout: float64 [b, r], nats.
        own: bool [b, r], where a token counts.
        temperature: declared.
    """
    shift = shift_of(trainer, rollout, own)
    if shift is not None:
        return Text(
            f"equal once moved by one token: the trainer's token j {shift:+d} is the rollout's j; "
            "labels, mask or log_probs are shifted",
            f"错开一个 token 后相等：训练侧第 j {shift:+d} 个对应 rollout 侧第 j 个；"
            "标签、mask 或 log_probs 发生错位",
        )
    cut = _cut(trainer, rollout, own)
    if cut is not None:
        return Text(
            f"the rollout's are higher, never lower, by {cut.mean:.3g} nats on average: "
            "renormalised over top-p or top-k survivors, which hold "
            f"{cut.least_mass:.2f} of the probability at least",
            f"rollout 侧只高不低，平均高 {cut.mean:.3g} nat：在 top-p 或 top-k 保留的 token 内"
            f"重新归一化，其概率之和不低于 {cut.least_mass:.2f}",
        )
    slope = slope_between(rollout[own], trainer[own])
    if not slope.is_one:
        who = _left_out(slope, temperature)
        return Text(
            f"slope {slope.low:.3f} to {slope.high:.3f} of the trainer on the rollout: "
            f"temperatures differ{who.en}",
            f"训练侧对 rollout 侧的斜率为 {slope.low:.3f} 至 {slope.high:.3f}：温度不同{who.zh}",
        )
    return UNNAMED


def _left_out(slope: Slope, temperature: float | None) -> Text:
    """Say who can have left the declared temperature out.

    Log_probs at T on those at 1 have a slope of 1/T where every position's normaliser is alike, and
    one between 1 and 1/T else.
    """
    if temperature is None or temperature <= 0 or temperature == 1:
        return Text("", "")
    of_trainer = (slope.low > 1) == (temperature > 1)
    limit = temperature if of_trainer else 1 / temperature
    if (slope.low > limit * _MARGIN) if limit > 1 else (slope.high < limit / _MARGIN):
        return Text("", "")
    side = Text("trainer", "训练侧") if of_trainer else Text("engine", "推理引擎")
    return Text(
        f"; between 1 and {limit:.3g}, as where the {side.en} leaves temperature "
        f"{temperature:g} out",
        f"；介于 1 与 {limit:.3g} 之间，与{side.zh}未使用温度 {temperature:g} 的情形相符",
    )


def _cut(trainer: FloatArray, rollout: FloatArray, own: BoolArray) -> Survivors | None:
    return survivors(trainer[own], rollout[own])


def _is_declared(cut: Survivors, values: Mapping[str, Any]) -> bool:
    """Whether top_p or top_k is declared, and the survivors hold no less than top_p."""
    top_p, top_k = _number(values.get("rollout.top_p")), _number(values.get("rollout.top_k"))
    if top_k is not None and top_k > 0:
        return True
    return (
        top_p is not None
        and top_p < 1
        and math.log(cut.least_mass / top_p) >= -SAME_LOG_PROBS.value
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


UNNAMED = Text(
    "on both sides, slope 1: model, precision, kernel, or a temperature too close to tell",
    "两个方向都有、斜率为 1：模型、精度、算子不同，或温度差异太小而无法分辨",
)
_NEEDS = Text(
    "needs old_log_probs and rollout_log_probs", "需要 old_log_probs 与 rollout_log_probs"
)
