"""What a MindSpeed-RL run is: its configuration as an actor's worker has it, and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dumps.capture.describe import describe
from dumps.capture.plan import What
from dumps.capture.session import Session
from dumps.capture.step_batch import TextOf, decoder

_SECTIONS = {
    "megatron_training": "megatron_config",
    "actor_config": "megatron_config",
    "rl_config": "rl_config",
    "generate_config": "generate_config",
}
"""Of MindSpeed-RL's YAML: a worker's megatron_config is the first with the second laid over it."""


def describe_run(session: Session, worker: Any, rank: int) -> TextOf | None:
    """Have the first rank write what the run is; return what makes texts of its token ids."""
    if session.takes(What.CONFIG) and rank == 0:
        model = getattr(worker.megatron_config, "tokenizer_name_or_path", None)
        describe(session, f"actor-{rank}", "mindspeed_rl", _yaml(worker), model)
    tokenizer = getattr(worker, "tokenizer", None)
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # MindSpeed-RL's around transformers'
    return decoder(tokenizer) if hasattr(tokenizer, "batch_decode") else None


def _yaml(worker: Any) -> str:
    from omegaconf import OmegaConf

    settings = {
        section: _plain(vars(owner))
        for section, name in _SECTIONS.items()
        if hasattr(owner := getattr(worker, name, None), "__dict__")
    }
    rl = settings.get("rl_config", {})
    if rl.get("mini_batch_size") and rl.get("n_samples_per_prompt"):
        # RLConfig has multiplied it already (2.0.0 to master); YAML has it in prompts
        rl["mini_batch_size"] //= rl["n_samples_per_prompt"]
    for section in ("megatron_training", "actor_config"):
        own = settings.get(section, {})
        if own.get("global_batch_size") and rl.get("n_samples_per_prompt"):
            # as the launcher has multiplied what every worker is given
            own["global_batch_size"] //= rl["n_samples_per_prompt"]
    return str(OmegaConf.to_yaml(OmegaConf.create(settings)))


def _plain(value: Any) -> Any:
    """Return what YAML can hold of a setting, None of the rest."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, str):
        return value.replace("${", "$ {")  # resolved already: what is left is no reference
    if isinstance(value, Sequence):  # of OmegaConf too, whose lists are none of Python's
        return [_plain(each) for each in value]
    return value if isinstance(value, int | float | bool | None) else None
