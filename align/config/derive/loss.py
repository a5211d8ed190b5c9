"""What the choice of policy loss implies."""

from __future__ import annotations

from align.config.derive.quantity import Values, derived
from align.core.config_value import EffectiveValue


def loss(values: Values) -> dict[str, EffectiveValue]:
    """Tell whether the policy loss is another than PPO's."""
    name, mode = "derived.nonstandard_loss", values.get("loss.mode")
    if mode is None:
        return {}
    other = mode.value != "vanilla"
    return {name: derived(name, other, ("loss.mode",), "mode is not vanilla", values)}
