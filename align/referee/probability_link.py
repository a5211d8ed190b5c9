"""The trainer's log_probs beside the rollout engine's, before any update, and what shape they have.

Of equal models and settings the two differ by rounding. A slope other than 1 is a temperature; a
difference on one side alone is log S of a truncated vocabulary (top-p, top-k); one at the first
token alone is the prompt's end or the first decoding step; log_probs that agree once moved by one
token are masked or labelled one off; one at the ends of equal chunks alone is context parallelism.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from align.core.config_value import EffectiveConfig
from align.core.text import Text
from align.referee.gradient_norms import SAME_LOG_PROBS
from align.referee.link import Link, LinkVerdict, not_recorded
from align.referee.probability_places import context_parallel_size, shift_of
from align.referee.step_batch import StepBatch

NAME = "log_probs, trainer - rollout"
_SIGMAS = 5.0
_FEWEST = 30

FloatArray = npt.NDArray[np.float64]


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
    apart = float(np.abs(trainer - rollout)[own].mean())
    if apart <= SAME_LOG_PROBS.value:
        return Link(NAME, declared, LinkVerdict.AS_DECLARED, apart, 0.0, SAME_LOG_PROBS.value)
    attention = batch.tensors.get("attention_mask")
    shape = shape_of(trainer, rollout, own, None if attention is None else attention.numpy())
    truncated = isinstance(top_p, int | float) and top_p < 1
    expected = shape is _LOG_S and truncated
    return Link(
        NAME,
        declared,
        LinkVerdict.AS_DECLARED if expected else LinkVerdict.DIFFERS,
        apart,
        0.0,
        SAME_LOG_PROBS.value,
        shape,
    )


def shape_of(
    trainer: FloatArray,
    rollout: FloatArray,
    own: npt.NDArray[np.bool_],
    attention: npt.NDArray[np.generic] | None = None,
) -> Text:
    """Say what the differences look like.

    Args:
        trainer, rollout: float64 [b, r], nats.
        own: bool [b, r], where a token counts.
        attention: [b, p + r], not 0 where there is a token; None where it is not recorded.
    """
    apart = (trainer - rollout)[own]
    shift = shift_of(trainer, rollout, own)
    if shift is not None:
        return Text(
            f"equal once moved by one token: the trainer's token j {shift:+d} is the rollout's j; "
            "labels, mask or log_probs are shifted",
            f"错开一个 token 后相等：训练侧第 j {shift:+d} 个对应 rollout 侧第 j 个；"
            "标签、mask 或 log_probs 发生错位",
        )
    if attention is not None and attention.ndim == 2 and attention.shape[1] >= own.shape[1]:
        size = context_parallel_size(trainer - rollout, own, attention != 0)
        if size is not None:
            return Text(
                f"at the ends of {2 * size} equal chunks of a row alone: labels or logits are lost "
                f"between the parts of a context parallel size of {size}",
                f"仅在每行 {2 * size} 个等长分块的边界处不同："
                f"上下文并行（大小 {size}）的各部分之间丢失了标签或 logits",
            )
    if (apart <= SAME_LOG_PROBS.value).mean() >= 0.99:
        return _LOG_S
    first, rest = own & (np.cumsum(own, axis=1) == 1), own & (np.cumsum(own, axis=1) > 1)
    at_first, at_rest = (np.abs(trainer - rollout)[where] for where in (first, rest))
    if len(at_rest) and at_rest.mean() <= SAME_LOG_PROBS.value:
        return Text(
            f"the first token alone differs, by {at_first.mean():.3g} nats on average",
            f"仅首个 token 不同，平均相差 {at_first.mean():.3g} nat",
        )
    slope, error = regression(rollout[own], trainer[own])
    if abs(slope - 1) > _SIGMAS * error:
        return Text(
            f"slope {slope:.3f} ± {error:.2g} of the trainer on the rollout: temperatures differ",
            f"训练侧对 rollout 侧的斜率为 {slope:.3f} ± {error:.2g}：温度不同",
        )
    return Text(
        "on both sides, slope 1: model, precision, kernel, or a temperature too close to tell",
        "两个方向都有、斜率为 1：模型、精度、算子不同，或温度差异太小而无法分辨",
    )


def regression(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Fit y = a + slope · x; return the slope and its standard error, infinite where x is flat."""
    spread = float(((x - x.mean()) ** 2).sum())
    if len(x) < _FEWEST or not spread > 0:
        return 1.0, math.inf
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    residual = y - y.mean() - slope * (x - x.mean())
    return slope, math.sqrt(float((residual**2).sum()) / (len(x) - 2) / spread)


_NEEDS = Text(
    "needs old_log_probs and rollout_log_probs", "需要 old_log_probs 与 rollout_log_probs"
)
_LOG_S = Text(
    "the rollout's are higher, never lower: renormalised over top-p or top-k survivors",
    "rollout 侧只高不低：在 top-p 或 top-k 保留的 token 内重新归一化",
)
