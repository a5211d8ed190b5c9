"""How each framework's command line sets the few fields the experiments need.

The keys are those of the framework tables, as a user writes them; a test reads them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from align.next.experiment import Settings


@dataclass(frozen=True, slots=True)
class Dialect:
    """One framework's command line.

    Args:
        program: starts it, where the run's own command is not recorded.
        keys: field -> keys that are all set to its value.
        cheap: settings that leave out what an experiment of few steps does not need.
        own: settings that keep an experiment out of the run's own folders, and from resuming it.
        dropped: keys of the run's own command that would overwrite what it recorded.
        form: of one setting.
    """

    program: str
    keys: Mapping[str, tuple[str, ...]]
    cheap: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    form: str = "{key}={value}"


_VERL_KEYS = {
    "actor.lr": ("actor_rollout_ref.actor.optim.lr",),
    "data.max_response_length": ("data.max_response_length",),
    "rollout.top_k": ("actor_rollout_ref.rollout.top_k",),
    "rollout.seed": ("actor_rollout_ref.rollout.seed",),
    "trainer.total_steps": ("trainer.total_training_steps",),
}
_SAMPLING = "generate_config.sampling_config"

DIALECTS: Mapping[str, Dialect] = {
    "verl": Dialect(
        program="python3 -m verl.trainer.main_ppo",
        keys=_VERL_KEYS,
        cheap=("trainer.val_before_train=False", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        own=("trainer.default_local_dir={folder}/checkpoints",),
        dropped=("trainer.rollout_data_dir", "trainer.validation_data_dir"),
    ),
    "stack": Dialect(program="align train", keys=_VERL_KEYS),
    "mindspeed_rl": Dialect(
        program="python cli/train_grpo.py",
        keys={
            "actor.lr": ("actor_config.lr", "actor_config.min_lr"),
            "data.max_response_length": (f"{_SAMPLING}.max_tokens",),
            "rollout.top_k": (f"{_SAMPLING}.top_k",),
            "rollout.seed": (f"{_SAMPLING}.seed",),
            "trainer.total_steps": ("megatron_training.train_iters",),
        },
    ),
    "trl": Dialect(
        program="python train.py",
        keys={
            "actor.lr": ("learning_rate",),
            "data.max_response_length": ("max_completion_length",),
            "rollout.top_k": ("top_k",),
            "rollout.seed": ("seed",),
            "trainer.total_steps": ("max_steps",),
        },
        form="--{key} {value}",
    ),
}


def spelled(dialect: Dialect, settings: Settings) -> tuple[str, ...]:
    """Return settings as arguments of the framework's command line."""
    return tuple(
        dialect.form.format(key=key, value=value)
        for field, value in settings.items()
        for key in dialect.keys[field]
    )
