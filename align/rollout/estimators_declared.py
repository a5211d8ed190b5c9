"""The estimator that a configuration names, with its settings."""

from __future__ import annotations

from dataclasses import dataclass

from align.core.config_value import EffectiveConfig
from align.rollout.estimators import ESTIMATORS, Estimator, Reads, Settings
from align.rollout.group_advantages import Scaling

BY_STD, _GAMMA = "advantage.normalize_by_std", "advantage.gamma"


@dataclass(frozen=True, slots=True)
class Declared:
    """How a configuration estimates advantages from rewards.

    Args:
        name: as verl spells the estimator.
    """

    name: str
    estimator: Estimator
    settings: Settings

    @property
    def label(self) -> str:
        """As a sentence calls the estimator."""
        return "GRPO" if self.name == "grpo" else self.name

    @property
    def formula(self) -> str:
        """Of an advantage, with the settings filled in."""
        epsilon, gamma = self.settings.scaling.epsilon, self.settings.gamma
        return self.estimator.formula.format(epsilon=epsilon, gamma=gamma)


def declared_estimator(config: EffectiveConfig) -> Declared | None:
    """Return what a configuration declares; None where it does not follow from rewards alone.

    A setting that is not known is verl's default (`unknown_setting` says which).
    """
    values = {name: value.value for name, value in config.values.items()}
    name = values.get("advantage.estimator")
    if not isinstance(name, str) or name not in ESTIMATORS:
        return None
    scaling = Scaling(by_std=values.get(BY_STD) is not False)
    epsilon, gamma = values.get("advantage.std_eps"), values.get(_GAMMA)
    if isinstance(epsilon, int | float):
        scaling = Scaling(scaling.by_std, float(epsilon))
    discount = float(gamma) if isinstance(gamma, int | float) else 1.0
    return Declared(name, ESTIMATORS[name], Settings(scaling, discount))


def unknown_setting(config: EffectiveConfig, declared: Declared) -> str | None:
    """Name a setting that the estimator reads and the configuration does not give."""
    values = {name: value.value for name, value in config.values.items()}
    reads = declared.estimator.reads
    if Reads.SCALING in reads and not isinstance(values.get(BY_STD), bool):
        return BY_STD
    if Reads.SCALING in reads and values.get("advantage.options.scale_rewards") == "batch":
        return "advantage.options.scale_rewards"
    if Reads.GAMMA in reads and not isinstance(values.get(_GAMMA), int | float):
        return _GAMMA
    return None
