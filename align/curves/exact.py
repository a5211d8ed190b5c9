"""Quantities that follow from configuration and data alone: no sampling excuses a difference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.curves.pair import PairedMetric, Pairing, is_exact
from align.curves.shift_findings import dotted


def exact_findings(pairing: Pairing) -> Iterator[Finding]:
    """Yield schedules and prompt statistics that differ, each at its first differing step.

    An error, except where the definition rather than the run may differ: the same schedule logged
    one step earlier, a share of prompts at the length limit while the lengths are equal, and a
    coefficient that a controller adapts to sampled values after the first step.
    """
    for metric in pairing.metrics:
        if not is_exact(metric.name):
            continue
        differs = metric.differs()
        if differs.any():
            yield _finding(pairing, metric, int(np.argmax(differs)), int(differs.sum()))


def _finding(pairing: Pairing, metric: PairedMetric, at: int, num_differing: int) -> Finding:
    step = int(metric.steps[at])
    reference, candidate = float(metric.reference[at]), float(metric.candidate[at])
    excuse = _excuse(pairing, metric, at)
    return Finding(
        id=f"curves.{dotted(metric.name)}.differs",
        rung=Rung.CURVES,
        severity=Severity.WARNING if excuse else Severity.ERROR,
        title=Text(
            f"{metric.name} differs from step {step} on: {reference:.6g} in the reference, "
            f"{candidate:.6g} in the candidate ({num_differing} of {len(metric)} steps)",
            f"{metric.name} 从第 {step} 步起不同：参考为 {reference:.6g}，被测为 {candidate:.6g}"
            f"（{len(metric)} 步中有 {num_differing} 步）",
        ),
        reference=reference,
        candidate=candidate,
        evidence=metric.evidence(step),
        why=excuse or _WHY,
        fix=_FIX_DATA if metric.meaning.rung is Rung.DATA else _FIX_SCHEDULE,
        symptom=metric.symptom(step, pairing.first_step, noise_sized=False),
    )


def _excuse(pairing: Pairing, metric: PairedMetric, at: int) -> Text | None:
    if _logged_a_step_apart(metric):
        return _ONE_STEP
    if metric.name == "prompt_length/clip_ratio":
        lengths = [pairing.get(f"prompt_length/{end}") for end in ("max", "mean", "min")]
        if all(m is not None and not m.differs().any() for m in lengths):
            return _LIMIT
    if "kl" in metric.name and at > 0:
        return _CONTROLLER
    return None


def _logged_a_step_apart(metric: PairedMetric) -> bool:
    """Tell whether all differing values equal the other side's value one step earlier or later."""
    differs = metric.differs()
    tolerance = 1e-6 * np.abs(metric.reference).max() + metric.resolution
    for ours, theirs in (
        (metric.reference, metric.candidate),
        (metric.candidate, metric.reference),
    ):
        moved = np.abs(ours[:-1] - theirs[1:]) <= tolerance[1:]
        if differs.sum() > 1 and moved[differs[1:]].all():
            return True
    return False


_WHY = Text(
    "This quantity follows from the configuration and the data alone, so rounding and sampling "
    "cannot make it differ.",
    "该量只取决于配置与数据，舍入与采样都不会使其不同。",
)
_ONE_STEP = Text(
    "It is the same schedule one step apart: the scheduler steps before the value is logged (or "
    "used) on one side and after it on the other.",
    "两侧是同一条曲线，只错开一步：一侧先更新调度器再记录（或使用）该值，另一侧相反。",
)
_LIMIT = Text(
    "The prompt lengths themselves are equal, so the length limit it counts against differs, or "
    "its definition.",
    "prompt 长度本身一致，因此不同的是所依据的长度上限，或该比例的定义。",
)
_CONTROLLER = Text(
    "An adaptive controller follows the sampled KL, so this may be a consequence.",
    "自适应控制器会跟随采样得到的 KL，因此这可能只是其他差异的结果。",
)
_FIX_SCHEDULE = Text(
    "Compare the optimizer section of both configurations: lr, warm-up, decay and total steps.",
    "比较两侧的优化器配置：学习率、预热、衰减与总步数。",
)
_FIX_DATA = Text(
    "Compare the data: files, shuffle, seed, filtering of long prompts, chat template.",
    "比较数据：文件、打乱方式、随机种子、超长 prompt 的过滤、对话模板。",
)
