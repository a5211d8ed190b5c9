"""Log_probs that differ although the logits they are made of agree: a temperature left out, a
rounding; and those of a reference model that is another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.objective.log_prob_limits import APART, EXACT, TIMES
from align.rollout.trainer_pair import TrainerPair, paired_steps, trainer_pair
from dumps.readers.safetensors_numbers import are_bfloat16
from dumps.store.run_data import RunData

_SLOPE = Threshold(0.05, "one temperature step people use: 1.0 against 0.95")
_FIRST_STEPS = 4  # later ones' policies are apart by themselves
_ACTS = Mechanism(
    Rung.FORWARD, Strength.SEMANTIC, ("training/rollout_probs_diff*", "rollout_corr/*")
)

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LogProbs:
    """The candidate's log_probs against the reference's, over response tokens.

    Args:
        mean: mean absolute difference, nats.
        slope: of the candidate's on the reference's.
        engine: mean absolute difference of each side from its own rollout engine, where recorded.
    """

    mean: float
    slope: float
    engine: tuple[float, float] | None


def temperature_finding(reference: RunData, candidate: RunData, step: int) -> Finding | None:
    """Compare the trainers' log_probs of the same tokens; the logits are known to agree."""
    pair = trainer_pair(reference, candidate, step)
    found = None if pair is None else compare_log_probs(pair)
    if pair is None or found is None:
        return None
    if found.mean > APART.value:
        return _finding(pair, found, step)
    return _rounded_finding(pair, found, step) or _other_reference(reference, candidate)


def compare_log_probs(pair: TrainerPair) -> LogProbs | None:
    """Measure how far the log_probs are apart; None where they are not recorded."""
    tokens = _tokens(pair, "old_log_probs")
    if tokens is None:
        return None
    here, own, other = tokens
    spread = own - own.mean()
    size = float(spread @ spread)
    slope = float(spread @ (other - other.mean())) / size if size else 1.0
    sampled = pair.both("rollout_log_probs")
    engine = None
    if sampled is not None:
        means = [
            float(np.abs(trained - drawn[here].astype(np.float64)).mean())
            for trained, drawn in zip((own, other), sampled, strict=True)
        ]
        engine = (means[0], means[1])
    return LogProbs(float(np.abs(own - other).mean()), slope, engine)


def _tokens(pair: TrainerPair, name: str) -> tuple[Bools, Float64, Float64] | None:
    """Return where both count tokens, and both sides' values there; None with less than two."""
    both, masks = pair.both(name), pair.both("response_mask")
    if both is None or masks is None:
        return None
    here = (masks[0] != 0) & (masks[1] != 0)
    own, other = (each[here].astype(np.float64) for each in both)
    return (here, own, other) if own.size > 1 else None


def _rounded_finding(pair: TrainerPair, found: LogProbs, step: int) -> Finding | None:
    """Say that one side's log_probs are bfloat16 numbers, and the other's are not."""
    tokens = _tokens(pair, "old_log_probs")
    assert tokens is not None
    narrow = [are_bfloat16(values) for values in tokens[1:]]
    if narrow[0] == narrow[1]:
        return None
    side, side_zh = ("reference", "参考") if narrow[0] else ("candidate", "被测")
    return Finding(
        id="forward.log_probs",
        rung=Rung.FORWARD,
        severity=Severity.WARNING,
        title=Text(
            f"logits agree, and the {side}'s log_probs are rounded to bfloat16: {found.mean:.2g} "
            f"nats apart on average at step {step}",
            f"logits 一致，而{side_zh}的 log_probs 被舍入到 bfloat16："
            f"第 {step} 步平均相差 {found.mean:.2g} nat",
        ),
        reference=float(narrow[0]),
        candidate=float(narrow[1]),
        evidence=_sources(pair, "old_log_probs"),
        why=Text(
            "A log_prob of -6 moves by up to 0.016 in one rounding, and the ratio with it: tokens "
            "leave and enter the clip range by rounding alone.",
            "-6 附近的 log_prob 一次舍入可偏差 0.016，ratio 随之变化：仅因舍入就会进出裁剪范围。",
        ),
        fix=Text(
            "Compute and keep log_probs in float32 from the logits on.",
            "从 logits 起以 float32 计算并保存 log_probs。",
        ),
        mechanism=_ACTS,
    )


def _other_reference(reference: RunData, candidate: RunData) -> Finding | None:
    """Look at the first steps: a reference model that follows the policy begins as it should."""
    for step in paired_steps(reference, candidate)[:_FIRST_STEPS]:
        pair = trainer_pair(reference, candidate, step)
        found = None if pair is None else compare_log_probs(pair)
        if pair is None or found is None or found.mean > APART.value:
            return None
        finding = _reference_finding(pair, found, step)
        if finding is not None:
            return finding
    return None


def _reference_finding(pair: TrainerPair, found: LogProbs, step: int) -> Finding | None:
    """Say that the reference models differ where the policies agree."""
    tokens = _tokens(pair, "ref_log_prob")
    if tokens is None:
        return None
    apart = float(np.abs(tokens[1] - tokens[2]).mean())
    if apart <= max(TIMES * found.mean, EXACT.value):
        return None
    follows = _follows(pair)
    return Finding(
        id="forward.ref_log_prob",
        rung=Rung.FORWARD,
        severity=Severity.ERROR if apart > APART.value else Severity.WARNING,
        title=Text(
            f"the reference models differ: ref_log_prob is {apart:.2g} nats apart on average at "
            f"step {step}, and the policies' log_probs {found.mean:.2g}",
            f"两侧的参考模型不同：第 {step} 步 ref_log_prob 平均相差 {apart:.2g} nat，"
            f"而策略的 log_probs 相差 {found.mean:.2g}",
        ),
        reference=0.0,
        candidate=apart,
        evidence=_sources(pair, "ref_log_prob"),
        why=Text(
            "The same tokens, and policies that agree: the reference model has other weights, "
            "another dtype or another setting than the policy began with, and the KL pulls "
            f"towards it.{follows.en}",
            "token 相同，策略一致：参考模型的权重、数据类型或设置与策略的初始模型不同，"
            f"而 KL 会把策略拉向它。{follows.zh}",
        ),
        fix=Text(
            "Compare the path, dtype and configuration the reference model is loaded with on both "
            "sides; at step 1 ref_log_prob equals old_log_probs where both load one checkpoint.",
            "请对照两侧加载参考模型的路径、数据类型与配置；若加载同一检查点，"
            "第 1 步的 ref_log_prob 应等于 old_log_probs。",
        ),
        mechanism=Mechanism(Rung.FORWARD, Strength.SEMANTIC, ("actor/kl_loss", "kl_loss")),
    )


def _follows(pair: TrainerPair) -> Text:
    """Say which side's reference model is the policy of the moment."""
    policies, references = pair.both("old_log_probs"), pair.both("ref_log_prob")
    assert policies is not None and references is not None
    equal = [np.array_equal(*both) for both in zip(policies, references, strict=True)]
    if equal[0] == equal[1]:
        return Text("", "")
    side, side_zh = ("reference", "参考") if equal[0] else ("candidate", "被测")
    return Text(
        f" The {side}'s is the policy itself at that step.",
        f"{side_zh}的参考模型就是该步的策略本身。",
    )


def _sources(pair: TrainerPair, key: str) -> tuple[Evidence, ...]:
    sides = (Side.REFERENCE, Side.CANDIDATE)
    return tuple(Evidence(s, side, key=key) for s, side in zip(pair.source, sides, strict=True))


def _finding(pair: TrainerPair, found: LogProbs, step: int) -> Finding:
    off = found.engine is not None and found.engine[0] > found.engine[1]
    side = Side.REFERENCE if off else Side.CANDIDATE
    side_zh = "参考" if off else "被测"
    is_slope = abs(found.slope - 1) > _SLOPE.value
    engine = found.engine or (float("nan"), float("nan"))
    return Finding(
        id="forward.temperature" if is_slope else "forward.log_probs",
        rung=Rung.FORWARD,
        severity=Severity.ERROR,
        title=Text(
            f"logits agree and the trainers' log_probs do not: {found.mean:.2g} nats apart on "
            f"average at step {step}, slope {found.slope:.3g}",
            f"logits 一致，而训练侧的 log_probs 不同：第 {step} 步平均相差 {found.mean:.2g} nat，"
            f"斜率 {found.slope:.3g}",
        ),
        reference=engine[0],
        candidate=engine[1],
        evidence=tuple(
            Evidence(
                source,
                which,
                key="old_log_probs",
                text=f"mean absolute difference from its own rollout engine: {apart:.3g} nats",
            )
            for source, which, apart in zip(
                pair.source, (Side.REFERENCE, Side.CANDIDATE), engine, strict=True
            )
        ),
        why=Text(
            f"Every recorded activation agrees, so the difference is made between logits and "
            f"log_probs: a temperature that one side does not divide by. The {side.value} is "
            "further from its own engine.",
            "所有已记录的激活都一致，因此差异产生于 logits 与 log_probs 之间："
            f"有一侧没有除以温度。{side_zh}与自己的推理引擎相差更大。",
        ),
        fix=Text(
            "Divide the trainer's logits by rollout.temperature before the log-softmax, on both "
            "sides alike.",
            "在两侧计算 log-softmax 之前，都把训练侧的 logits 除以 rollout.temperature。",
        ),
        mechanism=_ACTS,
    )
