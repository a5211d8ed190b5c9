"""Micro-batches change the loss only where it is normalised within each of them.

Source: verl from 0.8 on divides by the tokens of the whole mini-batch; verl up to 0.7 and
MindSpeed-RL average token losses within a micro-batch and then the micro-batches.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf, EffectiveConfig
from align.core.finding import Severity, Strength
from align.core.text import Text
from align.frameworks.config_table import version_tuple

FIELDS = (
    *("actor.micro_batch_size", "actor.dynamic_batch", "actor.max_tokens_per_micro_batch"),
    "loss.normalization",
)


_SELECTING: set[ConfigLeaf] = {"kl_cov", "clip_cov"}


def rule(case: Case) -> Ruling | None:
    """Grade it by how each side normalises its loss."""
    if case.name == "actor.micro_batch_size" and case.both("actor.dynamic_batch", True):
        return Ruling(
            Text(
                "Micro-batches are made by number of tokens on both sides.",
                "两侧均按 token 数划分 micro-batch。",
            ),
            Severity.INFO,
            Strength.NONE,
        )
    if case.name.startswith("actor.max_tokens") and case.off("actor.dynamic_batch"):
        return None
    is_batch = case.name == "loss.normalization"
    if set(case.values("loss.mode")) & _SELECTING and not is_batch:
        return Ruling(
            Text(
                "The loss picks tokens by their covariance within each micro-batch, so its size "
                "decides which tokens are picked (verl#7829).",
                "该损失按 micro-batch 内的协方差挑选 token，因此其大小决定选中哪些 token"
                "（verl#7829）。",
            ),
            Severity.ERROR,
            Strength.SEMANTIC,
        )
    configs = (case.reference_config, case.candidate_config)
    local = [_local(config) for config in configs]
    if None not in local and all(map(_whole, configs, local)):
        return _ONE_AN_UPDATE if any(local) else _GLOBAL
    if is_batch:
        return None
    if True in local:
        return Ruling(
            Text(
                "The token mean is taken within each micro-batch (verl up to 0.7, MindSpeed-RL), "
                "so their size weights the tokens differently.",
                "token 均值在每个 micro-batch 内计算（verl 0.7 及以前、MindSpeed-RL），"
                "因此其大小会改变 token 的权重。",
            ),
            Severity.WARNING,
            Strength.SEMANTIC,
            by_version=True,
        )
    if None in local:
        return Ruling(
            Text(
                "Up to verl 0.7 it also weights tokens differently; the version is not known.",
                "在 verl 0.7 及以前它还会改变 token 的权重；此处版本未知。",
            ),
            Severity.WARNING,
        )
    return _GLOBAL


_GLOBAL = Ruling(
    Text(
        "Both sides divide by the tokens of the whole mini-batch: only rounding differs.",
        "两侧均除以整个 mini-batch 的 token 数：只有舍入不同。",
    ),
    Severity.INFO,
    Strength.NUMERIC,
    by_version=True,
)
_ONE_AN_UPDATE = Ruling(
    Text(
        "Where the token mean is taken within each micro-batch, an update has but one, on one "
        "rank: it is that of the whole mini-batch, and only rounding differs.",
        "在 micro-batch 内求 token 均值的一侧，每次更新只有一个 micro-batch、且只在一个 rank 上："
        "它就是整个 mini-batch 的均值，只有舍入不同。",
    ),
    Severity.INFO,
    Strength.NUMERIC,
    instead=True,
    by_version=True,
)


def _whole(config: EffectiveConfig, is_local: bool | None) -> bool:
    """Tell whether the tokens of a whole mini-batch are averaged together."""
    sizes = (config.values.get(f"derived.{n}") for n in ("micro_batches", "data_parallel_size"))
    return not is_local or all(size is not None and size.value == 1 for size in sizes)


def _local(config: EffectiveConfig) -> bool | None:
    """Tell whether the loss is normalised per micro-batch, None where it is not known."""
    if config.framework == "mindspeed_rl":
        return True
    if config.framework == "stack":  # it follows verl 0.9, or MindSpeed-RL where told so
        definitions = config.values.get("loss.options.definitions")
        return definitions is not None and definitions.value == "mindspeed_rl"
    version = version_tuple(config.framework_version)
    if config.framework != "verl" or version is None:
        return None
    return version < (0, 8)


_MOVED = ("verl", "mindspeed_rl")
_ONE_RANK: dict[str, ConfigLeaf] = {
    **{"actor.mini_batch_size": 4, "rollout.n": 4, "trainer.world_size": 1},
    **{f"actor.{part}_parallel_size": 1 for part in ("tensor", "pipeline", "context")},
}
_SIXTEEN: dict[str, ConfigLeaf] = {"actor.micro_batch_size": 16}
FIRES = (
    Example("actor.micro_batch_size", (8, 16), both=_ONE_RANK, frameworks=_MOVED),
    Example(
        "loss.normalization",
        ("mini-batch", "micro-batch"),
        both=_ONE_RANK,
        candidate=_SIXTEEN,
        frameworks=_MOVED,
    ),
    Example("actor.micro_batch_size", (8, 4)),
    Example("actor.micro_batch_size", (8, 4), versions=("0.6.1", "0.6.1")),
    Example("actor.micro_batch_size", (8, 4), frameworks=("mindspeed_rl", "mindspeed_rl")),
    Example("actor.micro_batch_size", (8, 4), versions=(None, None)),
    Example("actor.micro_batch_size", (8, 4), both={"actor.dynamic_batch": True}),
    Example("actor.micro_batch_size", (8, 4), both={"loss.mode": "kl_cov"}),
)
SILENT = (
    Example("loss.normalization", ("mini-batch", "micro-batch"), frameworks=_MOVED),
    Example("actor.max_tokens_per_micro_batch", (8192, 4096), both={"actor.dynamic_batch": False}),
)
