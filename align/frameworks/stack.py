"""The bundled stack: verl's spelling, and keys of its own under ``stack``."""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigValue
from align.frameworks import verl, verl_config
from align.frameworks.config_table import ConfigView, Default, Formula

NAME = "stack"
READS_MODEL_CONFIG = True

METRIC_KEYS = verl.METRIC_KEYS
METRIC_SIGNS: tuple[str, ...] = ()  # its manifest and its configuration tell

CONFIG_SIGNS = ("stack.algorithm", "stack.definitions", "stack.*")

_EMULATION = "rounding of another device, same mathematics · 模拟另一设备的舍入，数学不变"
_OUTPUT = "what is recorded · 记录内容"

CONFIG_KEYS: dict[str, str] = {
    **verl_config.CONFIG_KEYS,
    "stack.algorithm": "loss.options.algorithm",
    "stack.definitions": "loss.options.definitions",
    "stack.seed": "model.override.seed",
    "stack.warmup.*": "model.override.warmup.*",
    "stack.data.format": "data.dataset.format",
    "stack.data.map_keys*": "data.dataset.map_keys*",
    "stack.data.dataset_additional_keys": "data.dataset.additional_keys",
    "stack.data.prompt_type": "data.chat_template.prompt_type",
    "stack.data.prompt_type_path": "data.chat_template.prompt_type_path",
    "stack.data.sampler": "data.sampler",
    "stack.data.num_rows": "data.dataset.num_rows",
    "stack.data.seed": "data.dataset.seed",
    "stack.reward.rules": "reward.options.rules",
    "stack.dpo.*": "loss.options.dpo.*",
}

CONFIG_IGNORED: dict[str, str] = {
    **verl_config.CONFIG_IGNORED,
    "stack.numerics.*": _EMULATION,
    "stack.num_threads": _EMULATION,
    "stack.record_trainer_inputs": _OUTPUT,
    "stack.record_sketches": _OUTPUT,
}

CONFIG_FORMULAS: tuple[Formula, ...] = verl_config.CONFIG_FORMULAS


def config_view(values: Mapping[str, ConfigValue], version: str | None) -> ConfigView:
    """Leave out keys that another setting makes dead, as in verl 0.9."""
    return verl_config.config_view(values, "0.9")


def config_defaults(
    values: Mapping[str, ConfigValue], version: str | None
) -> Mapping[str, Default]:
    """Return nothing: the stack writes every key it reads."""
    return {}
