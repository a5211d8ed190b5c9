"""Say what a lasting shift means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.curves.amplitude import Amplitude
from align.curves.curve_class import CurveClass
from align.curves.noise import FAMILY_ALPHA
from align.curves.shape import Shape
from align.curves.shift import LARGE_FACTOR, Shift


def shift_findings(
    shifts: Iterable[Shift],
    first_step: int,
    shapes: Mapping[str, Shape],
    sizes: Mapping[float, Sequence[Text]],
) -> Iterator[Finding]:
    """Yield a warning with its symptom for a large shift, a note for a significant one.

    Args:
        shapes: metric -> course of its difference.
        sizes: factors that a configured size could put into a metric, and what they are.
    """
    for shift in shifts:
        metric = shift.metric
        by_ratio = shift.factor >= LARGE_FACTOR.value
        yield Finding(
            id=f"curves.{dotted(metric.name)}.{'ratio' if by_ratio else 'shift'}",
            rung=Rung.CURVES,
            severity=Severity.WARNING if shift.large else Severity.INFO,
            title=_ratio_title(shift) if by_ratio else _shift_title(shift),
            reference=shift.reference,
            candidate=shift.candidate,
            evidence=metric.evidence(shift.onset.step),
            why=_why(shift, shapes.get(metric.name), sizes),
            fix=_FIX,
            symptom=metric.symptom(
                shift.onset.step,
                first_step,
                noise_sized=not by_ratio,
                uncertainty=shift.onset.uncertainty,
            )
            if shift.large
            else None,
        )


def amplitude_findings(amplitudes: Iterable[Amplitude]) -> Iterator[Finding]:
    """Yield a note for each signed metric that swings farther on one side.

    A note only: near 0 such a loss is what rounding and the split into micro-batches leave over.
    """
    for amplitude in amplitudes:
        metric = amplitude.metric
        sizes = f"{amplitude.reference:.3g} → {amplitude.candidate:.3g}"
        yield Finding(
            id=f"curves.{dotted(metric.name)}.amplitude",
            rung=Rung.CURVES,
            severity=Severity.INFO,
            title=Text(
                f"{metric.name} of the candidate swings {amplitude.ratio:.3g} times as far around "
                f"0 as that of the reference (typical size {sizes})",
                f"{metric.name}：被测围绕 0 的摆幅约为参考的 {amplitude.ratio:.3g} 倍"
                f"（典型大小 {sizes}）",
            ),
            reference=amplitude.reference,
            candidate=amplitude.candidate,
            evidence=metric.evidence(int(metric.steps[-1])),
            why=Text(
                f"95 % interval of the ratio: {amplitude.low:.3g} to {amplitude.high:.3g}. "
                f"{_chance(amplitude.p).en} A factor in front of the loss shows like this, and so "
                "does another split into micro-batches.",
                f"比值的 95% 区间为 {amplitude.low:.3g} 至 {amplitude.high:.3g}。"
                f"{_chance(amplitude.p).zh}"
                "损失前多出一个系数时会这样，micro-batch 划分不同时也会。",
            ),
            fix=Text(
                "Compare loss aggregation, advantage normalisation and micro-batch sizes.",
                "比较损失聚合方式、优势归一化与 micro-batch 大小。",
            ),
        )


def dotted(metric: str) -> str:
    """Spell a metric name as part of a finding's id."""
    return metric.replace("/", ".")


def _ratio_title(shift: Shift) -> Text:
    name, ratio, since = shift.metric.name, shift.ratio, shift.onset.words
    return Text(
        f"{name} of the candidate is {ratio:.3g} times that of the reference, {since.en}",
        f"{name}：{since.zh}，被测约为参考的 {ratio:.3g} 倍",
    )


def _shift_title(shift: Shift) -> Text:
    name, higher = shift.metric.name, shift.candidate > shift.reference
    size = f"{abs(shift.relative):.1%}" if shift.relative == shift.relative else "?"
    values, since = f"{shift.reference:.4g} → {shift.candidate:.4g}", shift.onset.words
    return Text(
        f"{name} of the candidate is {'higher' if higher else 'lower'} by {size} over the last "
        f"{shift.num_last} steps ({values}), {since.en}",
        f"{name}：{since.zh}，被测{'偏高' if higher else '偏低'}；"
        f"最后 {shift.num_last} 步相差 {size}（{values}）",
    )


def _why(shift: Shift, shape: Shape | None, sizes: Mapping[float, Sequence[Text]]) -> Text:
    chance = _EVERY_STEP if shift.p > FAMILY_ALPHA.value else _chance(shift.p)
    course = _course(shift, shape)
    chance = Text(f"{course.en}{chance.en}", f"{course.zh}{chance.zh}")
    if shift.ratio is not None and shift.factor >= LARGE_FACTOR.value:
        low, high = f"{shift.ratio_low:.3g}", f"{shift.ratio_high:.3g}"
        interval = Text(
            f"From there on the ratio is {shift.ratio:.3g} (95 % interval {low} to {high}), "
            f"{'the same' if shift.constant_ratio else 'not the same'} in both halves.",
            f"此后的比值为 {shift.ratio:.3g}（95% 区间 {low} 至 {high}），"
            f"前后两段{'一致' if shift.constant_ratio else '不一致'}。",
        )
        hint = _scaling_hint(shift, sizes)
        return Text(f"{interval.en} {chance.en}{hint.en}", f"{interval.zh}{chance.zh}{hint.zh}")
    return Text(
        f"{chance.en} Two correct runs whose rounding or sampling differs drift apart like this "
        "too; a repeat of the reference would tell.",
        f"{chance.zh}两次正确的运行若舍入或采样不同，也会这样逐渐分开；重复一次参考运行即可判断。",
    )


def _chance(p: float) -> Text:
    shown = f"p = {p:.1g}" if p > 1e-16 else "p < 1e-16"
    return Text(
        f"Chance alone gives such a mean with {shown}, allowing for autocorrelation and for "
        "all metrics tested.",
        f"计入自相关与同时检验的全部指标后，偶然出现这种均值的概率 {shown}。",
    )


_EVERY_STEP = Text(
    "At 95 of 100 steps it is a factor of 1.4 away from 1 or more.",
    "在 95% 以上的步上，比值与 1 相差 1.4 倍以上。",
)


def _course(shift: Shift, shape: Shape | None) -> Text:
    """Say whether the difference is an offset, a step or a drift."""
    if shape is None or (shift.constant_ratio and shift.factor >= LARGE_FACTOR.value):
        return Text("", "")
    steps = shift.metric.steps
    begin, end = (int(steps[min(at, len(steps) - 1)]) for at in (shape.begin, shape.end))
    if shape.kind is CurveClass.OFFSET:
        return Text(
            "Its course is an offset: no change of level is beyond chance. ",
            "走势为偏移：没有超出偶然的水平变化。",
        )
    if shape.kind is CurveClass.SHIFT:
        return Text(
            "Its course is an offset or a drift: these values do not tell. ",
            "走势为偏移或漂移，这些数据无法区分。",
        )
    if shape.kind is CurveClass.STEP_OR_DRIFT:
        return Text(
            f"Its course is a step or a drift between steps {begin} and {end}: these values do "
            "not tell. ",
            f"走势为第 {begin} 至 {end} 步之间的阶跃或漂移，这些数据无法区分。",
        )
    if shape.kind is CurveClass.STEP:
        return Text(
            f"Its course is a step near step {end}. ", f"走势为阶跃，发生在第 {end} 步附近。"
        )
    return Text(
        f"Its course is a drift from step {begin} to step {end}. ",
        f"走势为漂移，从第 {begin} 步到第 {end} 步。",
    )


def _scaling_hint(shift: Shift, sizes: Mapping[float, Sequence[Text]]) -> Text:
    """Name the factor a constant ratio is compatible with, as a thing to check.

    A configured size first, else the nearest whole number, powers of two included.
    """
    assert shift.ratio_low is not None and shift.ratio_high is not None and shift.ratio is not None
    inverse = shift.ratio < 1
    low, high = shift.ratio_low, shift.ratio_high
    if inverse:
        low, high = 1 / high, 1 / low
    whole = round(shift.factor)
    if not shift.constant_ratio or high - low >= 1:
        return Text("", "")
    configured = [f for f in sizes if low <= f <= high]
    if configured:
        factor = min(configured, key=lambda f: abs(f - shift.factor))
        names, names_zh = (", ".join(t.in_language(k) for t in sizes[factor]) for k in ("en", "zh"))
        k = f"1/{factor:g}" if inverse else f"{factor:g}"
        return Text(
            f" A constant factor of {k} equals the configured {names}: a value summed instead of "
            "averaged over them looks like this. This is a hypothesis, not a finding.",
            f"比值恒为 {k}，等于配置中的{names_zh}：对其求和而不是求平均时就会这样。"
            "这只是假设，不是发现。",
        )
    if not (whole >= 2 and low <= whole <= high):
        return Text("", "")
    k = f"1/{whole}" if inverse else str(whole)
    power = " (a power of two, as parallel sizes mostly are)" if whole & (whole - 1) == 0 else ""
    power_zh = "（2 的幂，并行规模大多如此）" if power else ""
    return Text(
        f" A constant factor of {k}{power} is what a value summed instead of averaged over {whole} "
        "ranks or micro-batches looks like, or a loss normalised differently: compare parallel "
        "sizes and loss aggregation. This is a hypothesis, not a finding.",
        f"比值恒为 {k}{power_zh}，常见于对 {whole} 个 rank 或 micro-batch 求和而不是求平均，"
        "或损失的归一化方式不同：请比较并行规模与损失聚合方式。这只是假设，不是发现。",
    )


_FIX = Text(
    "Repeat the reference once with another seed: what the repeats differ by is the noise floor. "
    "If this shift is larger, compare one step from the same weights and the same rollouts.",
    "换一个随机种子重复一次参考运行，两次参考之间的差异就是噪声水平；"
    "若此偏移更大，再从相同权重与相同 rollout 出发比较一个 step。",
)
