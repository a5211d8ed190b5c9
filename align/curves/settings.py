"""What the curves need of a run's effective configuration."""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, EffectiveConfig
from align.core.text import Text

Settings = Mapping[str, ConfigLeaf]
"""Common-schema field -> value."""

_SIZES = {
    "derived.data_parallel_size": Text("data-parallel size", "数据并行规模"),
    "actor.context_parallel_size": Text("context-parallel size", "上下文并行规模"),
    "actor.tensor_parallel_size": Text("tensor-parallel size", "张量并行规模"),
    "actor.pipeline_parallel_size": Text("pipeline-parallel size", "流水并行规模"),
    "trainer.world_size": Text("number of devices", "设备数"),
    "derived.micro_batches": Text("number of micro-batches", "micro-batch 数"),
    "derived.optimizer_steps_per_iteration": Text(
        "number of optimizer steps an iteration", "每次迭代的优化器步数"
    ),
}


def settings_of(config: EffectiveConfig) -> Settings:
    """Return the plain values of an effective configuration."""
    return {field: value.value for field, value in config.values.items()}


def parallel_sizes(sides: tuple[Settings, Settings]) -> dict[float, list[Text]]:
    """Map every factor that a size of either side, or their quotient, could put into a metric.

    A factor of 1 says nothing and is left out.
    """
    found: dict[float, list[Text]] = {}
    for field, words in _SIZES.items():
        sizes = [side.get(field) for side in sides]
        numbers = [float(s) for s in sizes if isinstance(s, (int, float)) and s > 0]
        for factor in {*numbers, *({max(numbers) / min(numbers)} if len(numbers) == 2 else ())}:
            if factor > 1:
                found.setdefault(factor, []).append(words)
    return found
