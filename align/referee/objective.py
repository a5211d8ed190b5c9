"""The loss that a configuration declares, as one record of all its choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from align.core.config_value import ConfigLeaf, EffectiveConfig
from align.core.text import Text
from align.frameworks.verl_versions import before
from align.objective.aggregate import LossAggregation
from align.objective.importance_sampling import RatioLevel
from align.objective.policy_loss import LOG_RATIO_LIMIT

_CORRECTION = "loss.rollout_correction"
_NEEDED = ("mode", "aggregation", "use_kl")


class Normalisation(str, Enum):
    """Whose counts a token loss is divided by."""

    MINI_BATCH = "mini-batch"
    MICRO_BATCH = "micro-batch"  # the mean of the micro-batches' means
    SUMMED = "micro-batch, summed"  # their sum


@dataclass(frozen=True, slots=True)
class Objective:
    """One loss: policy_sign · surrogate + kl_coef · KL - entropy_coef · entropy.

    Args:
        gspo: one ratio a sequence instead of one a token.
        dual: bound of the dual clip, None where there is none.
        log_ratio_limit: clamp of the log ratio, None where there is none.
        kl_coef: 0 where the KL is not in the loss.
        kl_reversed: the two models of the KL are exchanged.
        kl_by_ratio: each token's KL is weighed by its ratio (TRL `use_bias_correction_kl`).
        kl_sign: of the KL itself, which the loss adds and the log reports.
        scale_factor: divisor of seq-mean-token-sum-norm.
        correction: importance weights for the rollout policy, and their bound.
        own_ratio: each token's ratio is taken to the update's own log_probs, and is 1.
        mask_shift: columns by which the response mask is moved to the right.
        counts_shifted: a mean over tokens is divided by the count of the mask so moved; TRL's is
            divided by one taken before.
        advantage_shift: columns by which each row's advantages are moved to the right, around its
            end.
    """

    aggregation: LossAggregation
    normalisation: Normalisation
    clip_low: float
    clip_high: float
    dual: float | None
    kl_coef: float
    kl_type: str
    entropy_coef: float = 0.0
    gspo: bool = False
    log_ratio_limit: float | None = LOG_RATIO_LIMIT
    scale_factor: float | None = None
    correction: tuple[RatioLevel, float] | None = None
    kl_reversed: bool = False
    kl_by_ratio: bool = False
    kl_sign: int = 1
    policy_sign: int = 1
    own_ratio: bool = False
    mask_shift: int = 0
    counts_shifted: bool = True
    advantage_shift: int = 0


def declared_objective(config: EffectiveConfig) -> Objective | Text:
    """Read the loss off a configuration, or say why its loss cannot be recomputed."""
    values = {name: value.value for name, value in config.values.items()}
    if values.get("loss.options.algorithm") == "dpo":
        return Text("the loss of dpo is not recomputed", "不重算 dpo 的损失")
    lacking = [f"loss.{name}" for name in _NEEDED if values.get(f"loss.{name}") is None]
    if lacking:
        names = ", ".join(lacking)
        return Text(f"the configuration does not state {names}", f"配置未说明 {names}")
    modes = {mode.value: mode for mode in LossAggregation}
    known = values["loss.mode"] in ("vanilla", "gspo") and values["loss.aggregation"] in modes
    normalisation = _normalisation(config, values)
    if not known or normalisation is None:
        what = f"{values['loss.mode']}, {values['loss.aggregation']}"
        return Text(f"a loss of {what} is not recomputed", f"不重算 {what} 形式的损失")
    clip = _number(values, "loss.clip_ratio", 0.2)
    uses_kl = values["loss.use_kl"] is True
    return Objective(
        aggregation=modes[str(values["loss.aggregation"])],
        normalisation=normalisation,
        clip_low=_number(values, "loss.clip_ratio_low", clip),
        clip_high=_number(values, "loss.clip_ratio_high", clip),
        dual=_number_or_none(values, "loss.dual_clip"),
        kl_coef=_number(values, "loss.kl_coef", 0.0) if uses_kl else 0.0,
        kl_type=str(values.get("loss.kl_type") or "low_var_kl"),
        entropy_coef=_number(values, "loss.entropy_coef", 0.0),
        gspo=values["loss.mode"] == "gspo",
        log_ratio_limit=None if _of_mindspeed_rl(config, values) else LOG_RATIO_LIMIT,
        scale_factor=_number_or_none(values, "loss.scale_factor"),
        correction=_correction(values),
        kl_by_ratio=values.get("loss.options.bias_correction_kl") is True,
    )


def _of_mindspeed_rl(config: EffectiveConfig, values: Mapping[str, ConfigLeaf]) -> bool:
    return "mindspeed_rl" in (config.framework, values.get("loss.options.definitions"))


def _normalisation(
    config: EffectiveConfig, values: Mapping[str, ConfigLeaf]
) -> Normalisation | None:
    if _of_mindspeed_rl(config, values):
        return Normalisation.MICRO_BATCH
    stated = values.get("loss.normalization")
    if stated is None and config.framework == "stack":
        return Normalisation.MINI_BATCH
    if stated is None and config.framework == "verl" and config.framework_version is not None:
        old = before(config.framework_version, "0.8.0")
        return Normalisation.MICRO_BATCH if old else Normalisation.MINI_BATCH
    return next((each for each in Normalisation if each.value == stated), None)


def _correction(values: Mapping[str, ConfigLeaf]) -> tuple[RatioLevel, float] | None:
    level = values.get(f"{_CORRECTION}.rollout_is")
    if level not in [each.value for each in RatioLevel]:
        return None
    return RatioLevel(level), _number(values, f"{_CORRECTION}.rollout_is_threshold", 2.0)


def _number(values: Mapping[str, ConfigLeaf], name: str, otherwise: float) -> float:
    found = _number_or_none(values, name)
    return otherwise if found is None else found


def _number_or_none(values: Mapping[str, ConfigLeaf], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
