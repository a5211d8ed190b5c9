"""MindSpeed-RL's configuration keys, 2025-03 to 2.3.0 and master of 2026-04.

The sections overlay each other: a Megatron key of the actor is looked up in ``actor_config``, then
``megatron_training``, then the model's file, and has a default of its own otherwise. `config_view`
resolves that into keys ``actor.<key>``. What Megatron prints when it starts has the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue, ProvenanceKind
from align.core.text import Text
from align.frameworks.config_table import ConfigView
from align.frameworks.megatron_arguments import arguments
from align.frameworks.mindspeed_rl_defaults import UNREAD_BEFORE
from align.frameworks.mindspeed_rl_defaults import config_defaults as config_defaults
from align.frameworks.mindspeed_rl_eras import ERAS, MASTER, era_of, fitting_eras, is_before
from align.frameworks.mindspeed_rl_fixed import config_fixed as config_fixed
from align.frameworks.mindspeed_rl_formulas import CONFIG_FORMULAS as CONFIG_FORMULAS
from align.frameworks.mindspeed_rl_formulas import IN_SEQUENCES, ONE_BUDGET
from align.frameworks.mindspeed_rl_harmless import CONFIG_IGNORED as CONFIG_IGNORED
from align.frameworks.mindspeed_rl_keys import CONFIG_KEYS as CONFIG_KEYS

CONFIG_RELEASES = ERAS
CONFIG_VARIANTS: dict[str, dict[str, ConfigLeaf]] = {
    "GRPO": {"megatron_training.stage": "ray_grpo"},
    "DAPO": {"megatron_training.stage": "ray_dapo"},
    "PPO": {"megatron_training.stage": "ray_ppo"},
}
READS_MODEL_CONFIG = False  # the trainer; the rollout engine does read config.json

CONFIG_SIGNS = ("megatron_training.*", "rl_config.*", "generate_config.*")

_IN_SEQUENCES_WHERE_PRINTED = ("global_batch_size", "micro_batch_size")
_WORKERS_OWN = Text(
    "a worker prints its own number of sequences, not the run's",
    "worker 打印的是自己的序列数，而不是该次运行的设置",
)
_UNREAD = Text(
    "the loss of before 2025-05-15 does not read it", "2025-05-15 之前的损失函数不读取该项"
)
_ROLES = {
    "actor": "actor_config",
    "critic": "critic_config",
    "ref": "ref_config",
    "reward": "reward_config",
}


def config_view(values: Mapping[str, ConfigValue], version: str | None) -> ConfigView:
    """Overlay model file, ``megatron_training`` and the role's section, the last one winning.

    Source: `MegatronConfig({**megatron_training, **actor_config}, config.model)` applies the model
    file first, then the training keys. Keys with a dash are read as with an underscore. What the
    actor's Megatron printed counts before all of them.
    """
    view = {
        key: value
        for key, value in values.items()
        if key.startswith(("rl_config.", "generate_config."))
    }
    dead = {key: _WORKERS_OWN for key in _IN_SEQUENCES_WHERE_PRINTED if key in values}
    printed = {k: v for k, v in values.items() if k not in dead and _is_printed(v)}
    stated_roles = {role for role, section in _ROLES.items() if _section(values, section)}
    for role in sorted(stated_roles | {"actor"}):
        view |= {f"{role}.{key}": value for key, value in _role(values, role).items()}
    view |= {f"actor.{key}": value for key, value in printed.items()}
    if is_before(version):
        dead |= {key: _UNREAD for key in UNREAD_BEFORE if view.pop(key, None) is not None}
        if "rl_config.mini_batch_size" in view:
            view[IN_SEQUENCES] = view.pop("rl_config.mini_batch_size")
    if era_of(version) == "2.1.0" and "rl_config.max_packing_token_size" in view:
        view[ONE_BUDGET] = view.pop("rl_config.max_packing_token_size")
    taken = (*view, *printed, *dead)
    rest = {k: v for k, v in values.items() if not k.startswith(_OVERLAID) and k not in taken}
    return ConfigView(view | rest, dead)


def version_name(version: str) -> str | None:
    """Return the era a stated version belongs to."""
    return era_of(version)


def config_versions(values: Mapping[str, ConfigValue]) -> tuple[str, ...]:
    """Return the eras that have these keys, the one to assume first."""
    return fitting_eras(config_view(values, MASTER).values)


def _is_printed(value: ConfigValue) -> bool:
    return value.provenance.kind is ProvenanceKind.PRINTED and value.key in arguments()


_OVERLAID = ("megatron_training.", "model.", *(f"{section}." for section in _ROLES.values()))


def _role(values: Mapping[str, ConfigValue], role: str) -> dict[str, ConfigValue]:
    own = _section(values, _ROLES[role])
    shared = _section(values, "megatron_training") if role == "actor" else {}
    model = own.get("model") or _section(values, "megatron_training").get("model")
    name = str(model.value) if model is not None else None
    file = _section(values, f"model.{name}") if role == "actor" else {}
    if not file and role == "actor":
        file = {k: v for k, v in _section(values, "model").items() if "." not in k}
    return {**file, **shared, **own}


def _section(values: Mapping[str, ConfigValue], name: str) -> dict[str, ConfigValue]:
    prefix = f"{name}."
    return {
        key.removeprefix(prefix).replace("-", "_"): value
        for key, value in values.items()
        if key.startswith(prefix)
    }


def user_key(key: str) -> str:
    """Return where a user writes a key that `config_view` made."""
    role, _, rest = key.partition(".")
    return f"megatron_training.{rest}" if role == "actor" else key
