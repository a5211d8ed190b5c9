"""Where the KL to the reference model is paid, and with which coefficient."""

from __future__ import annotations

from align.config.derive.quantity import Values, derived, number, value_of
from align.core.config_value import EffectiveValue

_SWITCHES = ("loss.use_kl", "reward.use_kl_in_reward")
_ADAPTIVE = ("reward.kl_control", "reward.kl_target", "reward.kl_horizon")


def kl_penalty(values: Values) -> dict[str, EffectiveValue]:
    """Tell the placement (loss, reward, both, none) and the path of the coefficients."""
    if any(name not in values for name in _SWITCHES):
        return {}
    in_loss, in_reward = (bool(value_of(values, name)) for name in _SWITCHES)
    placement = {
        (True, True): "both",
        (True, False): "loss",
        (False, True): "reward",
        (False, False): "none",
    }[in_loss, in_reward]
    name, path = "derived.kl_placement", "derived.kl_coefficient"
    made = {name: derived(name, placement, _SWITCHES, "use_kl_loss, use_kl_in_reward", values)}
    parts, inputs = [], list(_SWITCHES)
    if in_loss:
        parts.append(_fixed(values, "loss.kl_coef", "loss"))
        inputs.append("loss.kl_coef")
    if in_reward:
        parts.append(_in_reward(values))
        inputs += ["reward.kl_coef", *_ADAPTIVE]
    if None not in parts:
        said = "; ".join(part for part in parts if part) or "none"
        made[path] = derived(
            path, said, inputs, "coefficient of each KL that is switched on", values
        )
    return made


def _fixed(values: Values, name: str, where: str) -> str | None:
    coefficient = number(values, name)
    return None if coefficient is None else f"{coefficient:g} in the {where}, fixed"


def _in_reward(values: Values) -> str | None:
    """Say how the coefficient moves; an adaptive one grows while the KL is above its target."""
    if value_of(values, "reward.kl_control") != "adaptive":
        return _fixed(values, "reward.kl_coef", "reward")
    start = number(values, "reward.kl_coef")
    target, horizon = (number(values, name) for name in _ADAPTIVE[1:])
    if start is None or target is None or horizon is None:
        return None
    return f"from {start:g} in the reward, adaptive to KL {target:g} over {horizon:g} samples"
