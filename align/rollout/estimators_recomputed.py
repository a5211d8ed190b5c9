"""One run's advantages, recomputed from its own rewards as its configuration declares."""

from __future__ import annotations

from dataclasses import dataclass

from align.core.config_value import EffectiveConfig
from align.core.finding import Side
from align.core.text import Text
from align.rollout.estimators_declared import Declared, declared_estimator, unknown_setting
from align.rollout.estimators_signals import signals_of
from align.rollout.group_advantages import BoolArray
from align.rollout.trained_rows import TrainedStep, trained_steps
from dumps.store.run_data import RunData

ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


@dataclass(frozen=True, slots=True)
class Recomputed:
    """One run's steps that record advantages.

    Args:
        declared: how its configuration estimates them.
        differing: the steps on which any recorded advantage is not the recomputed one.
    """

    side: Side
    declared: Declared
    steps: tuple[TrainedStep, ...]
    differing: tuple[TrainedStep, ...]


def recompute(side: Side, run: RunData, config: EffectiveConfig) -> Recomputed | Text:
    """Recompute a run's advantages, or say why they are not compared."""
    declared = declared_estimator(config)
    if declared is None:
        estimator = config.values.get("advantage.estimator")
        return _UNKNOWN if estimator is None else _not_recomputed(side, str(estimator.value))
    unknown = unknown_setting(config, declared)
    if unknown is not None:
        return _no_setting(side, declared, unknown)
    steps = tuple(step for step in trained_steps(run) if step.least is not None)
    if not steps:
        return _not_recorded(declared)
    differing = tuple(step for step in steps if differing_places(step, declared).any())
    return Recomputed(side, declared, steps, differing)


def differing_places(step: TrainedStep, declared: Declared) -> BoolArray:
    """bool [b, w]: places whose recorded advantage is not the declared one."""
    signals = signals_of(step, declared.estimator)
    return signals.differing(signals.expected(declared.estimator, declared.settings))


_UNKNOWN = Text(
    "Not compared: no advantage estimator is known.", "未比较：不知道 advantage 估计方法。"
)


def _not_recomputed(side: Side, name: str) -> Text:
    return Text(
        f"Not compared: the {side.value} computes {name}, which does not follow from scores, "
        "groups and lengths alone.",
        f"未比较：{ZH[side]}使用 {name}，它不只取决于得分、分组与长度。",
    )


def _no_setting(side: Side, declared: Declared, field: str) -> Text:
    return Text(
        f"Not compared: {declared.label} follows from {field}, which is not known of the "
        f"{side.value}, or is no value that is recomputed.",
        f"未比较：{declared.label} 取决于 {field}，{ZH[side]}的该项未知，或其取值不重算。",
    )


def _not_recorded(declared: Declared) -> Text:
    return Text(
        f"Not compared: needs {declared.label}'s scores, groups and advantages of both runs.",
        f"未比较：需要两侧 {declared.label} 的得分、分组与 advantages。",
    )
