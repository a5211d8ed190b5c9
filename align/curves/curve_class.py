"""What one metric of two runs does, in one word."""

from __future__ import annotations

from enum import Enum

from align.core.text import Text


class CurveClass(str, Enum):
    """How two curves of one metric relate; definition order is which is named first."""

    NONFINITE = "nonfinite"  # one side stops being a number
    COLLAPSE = "collapse"  # one side loses half of its level or more, the other does not
    DEFINITION = "definition"  # one side is a known function of the other
    PERMUTATION = "permutation"  # the same values in another order of steps
    MAGNITUDE = "magnitude"  # trainer and rollout engine agree ten times worse on one side
    SATURATION = "saturation"  # one side stays at one value while the other varies
    NOT_COMPUTED = "not_computed"  # one side is 0 throughout
    CONSTANT_RATIO = "constant_ratio"  # a factor of 1.4 or more, the same throughout
    STEP = "step"  # apart from one step on, at one distance
    DRIFT = "drift"  # ever farther apart
    STEP_OR_DRIFT = "step_or_drift"  # the level changes; the values do not tell how fast
    OFFSET = "offset"  # apart from the beginning, at one distance
    SHIFT = "shift"  # apart for good; the values do not tell since when
    DIFFERS = "differs"  # other values of a quantity that nothing random enters
    SPIKES = "spikes"  # single steps far out on one side
    AMPLITUDE = "amplitude"  # swings around 0 by another factor
    WITHIN_NOISE = "within_noise"  # differs, no more than chance explains
    EQUAL = "equal"
    NOT_JUDGED = "not_judged"  # no test is known, or too few steps

    @property
    def words(self) -> Text:
        """Name the class for readers."""
        return _WORDS[self]

    @property
    def is_apart(self) -> bool:
        """Whether the class says that the curves differ beyond noise."""
        return self not in (CurveClass.WITHIN_NOISE, CurveClass.EQUAL, CurveClass.NOT_JUDGED)


_WORDS = {
    CurveClass.NONFINITE: Text("NaN or infinity", "NaN 或无穷"),
    CurveClass.COLLAPSE: Text("collapse", "塌缩"),
    CurveClass.DEFINITION: Text("definition difference", "定义不同"),
    CurveClass.PERMUTATION: Text("permutation", "次序不同"),
    CurveClass.MAGNITUDE: Text("order of magnitude", "数量级不同"),
    CurveClass.SATURATION: Text("saturation", "饱和"),
    CurveClass.NOT_COMPUTED: Text("not computed on one side", "一侧未计算"),
    CurveClass.CONSTANT_RATIO: Text("constant ratio", "恒定比值"),
    CurveClass.STEP: Text("step change", "阶跃"),
    CurveClass.DRIFT: Text("drift", "漂移"),
    CurveClass.STEP_OR_DRIFT: Text("step or drift", "阶跃或漂移"),
    CurveClass.OFFSET: Text("offset", "偏移"),
    CurveClass.SHIFT: Text("offset or drift", "偏移或漂移"),
    CurveClass.DIFFERS: Text("other values", "数值不同"),
    CurveClass.SPIKES: Text("spikes", "尖峰"),
    CurveClass.AMPLITUDE: Text("amplitude", "摆幅不同"),
    CurveClass.WITHIN_NOISE: Text("equal within noise", "在噪声范围内一致"),
    CurveClass.EQUAL: Text("equal", "相等"),
    CurveClass.NOT_JUDGED: Text("not judged", "不作判断"),
}
