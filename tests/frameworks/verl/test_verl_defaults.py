"""The table of verl's defaults against the configuration the installed verl composes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hydra", reason="verl is not installed")
pytest.importorskip("verl", reason="verl is not installed")

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from align.core.config_value import ConfigValue, Provenance, ProvenanceKind
from align.frameworks.verl_defaults import config_defaults, default_history

TRAINERS = {"fsdp": "ppo_trainer", "megatron": "ppo_megatron_trainer"}
INSTALLED = version("verl")


def composed(trainer: str) -> Mapping[str, object]:
    """Compose a trainer's defaults, references between keys resolved."""
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(TRAINERS[trainer], overrides=["actor_rollout_ref.rollout.name=vllm"])
    return dict(_leaves(OmegaConf.to_container(config, resolve=False), config))


def _leaves(node: Any, config: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(node, dict) and (node or not prefix):
        for key, value in node.items():
            yield from _leaves(value, config, f"{prefix}{key}.")
    else:
        value = OmegaConf.select(config, prefix[:-1])
        plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        yield prefix[:-1], tuple(plain) if isinstance(plain, list | dict) else plain


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_default_of_the_table_is_what_the_installed_verl_composes(trainer: str) -> None:
    if not INSTALLED.startswith("0.9."):
        pytest.skip(f"the table ends with 0.9, and verl {INSTALLED} is installed")
    truth = composed(trainer)
    place = Provenance(ProvenanceKind.FILE, "composed")
    strategy = ConfigValue("actor_rollout_ref.actor.strategy", trainer, place)
    table = config_defaults({strategy.key: strategy}, INSTALLED)
    wrong = {
        key: (default.value, truth[key])
        for key, default in table.items()
        if key in truth and default.value != truth[key]
    }
    assert wrong == {}
    by_code = sorted(key for key in table if key not in truth)
    assert sum(key in truth for key in table) > 400
    assert by_code == sorted(BY_CODE["both"] + BY_CODE[trainer])


BY_CODE = {  # keys of no YAML file: what the code takes where they are absent
    "both": [
        "actor_rollout_ref.actor.optim.override_optimizer_config.eps",
        "actor_rollout_ref.rollout.min_p",
        "reward_model.reward_kwargs.overlong_buffer_cfg.enable",
    ],
    "fsdp": [
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype",
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype",
        "actor_rollout_ref.model.override_config.attn_implementation",
    ],
    "megatron": [],
}


def test_the_installed_dataclass_has_the_optimizers_defaults() -> None:
    optimizer = pytest.importorskip("verl.workers.config.optimizer")
    fsdp, megatron = optimizer.FSDPOptimizerConfig(), optimizer.McoreOptimizerConfig()
    prefix = "actor_rollout_ref.actor.optim"
    for key in ("weight_decay", "betas", "clip_grad", "lr_warmup_steps", "lr_warmup_steps_ratio"):
        for trainer, config in (("fsdp", fsdp), ("megatron", megatron)):
            (span,) = default_history(f"{prefix}.{key}", trainer, "0.9.1", "0.9.1")
            assert span.value == getattr(config, key)
