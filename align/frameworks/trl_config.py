"""TRL's GRPOConfig, PPOConfig and DPOConfig, 0.12 to 1.16, and what they inherit.

Sources: the configuration classes and trainers of the tags v0.12.0 to v1.9.0, and the released
1.10 to 1.16; the batch arithmetic is GRPOConfig's own (``__post_init__``) and PPOTrainer's.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue, Provenance, ProvenanceKind
from align.core.text import Text
from align.frameworks.config_table import ConfigView, number, version_tuple
from align.frameworks.trl_defaults import OLDEST, TRAINERS, VERSIONS, history, scoped, uses_vllm
from align.frameworks.trl_defaults import config_defaults as config_defaults
from align.frameworks.trl_defaults import default_history as default_history
from align.frameworks.trl_defaults import user_key as user_key
from align.frameworks.trl_formulas import CONFIG_FORMULAS as CONFIG_FORMULAS
from align.frameworks.trl_harmless import CONFIG_IGNORED as CONFIG_IGNORED
from align.frameworks.trl_keys import CONFIG_KEYS as CONFIG_KEYS

READS_MODEL_CONFIG = True
CONFIG_RELEASES = tuple(f"{major}.{minor}" for major, minor in VERSIONS)
CONFIG_VARIANTS: dict[str, dict[str, ConfigLeaf]] = {
    name: {"config_class": name} for name in TRAINERS
}

CONFIG_SIGNS = (
    "config_class",
    "per_device_train_batch_size",
    "num_generations",
    "max_completion_length",
    "num_ppo_epochs",
    "precompute_ref_log_probs",
)

# Keys that only one trainer has; the first that is set tells which one it is.
_OWN_KEYS = (
    ("GRPOConfig", ("num_generations", "epsilon", "num_iterations", "scale_rewards", "use_vllm")),
    ("PPOConfig", ("num_ppo_epochs", "cliprange_value", "vf_coef", "total_episodes")),
    ("DPOConfig", ("precompute_ref_log_probs", "f_divergence_type", "ld_alpha", "rpo_alpha")),
    ("GRPOConfig", ("max_completion_length", "vllm_mode")),
    ("DPOConfig", ("beta", "loss_type")),
)


_NO_VLLM = Text("use_vllm is off", "未启用 use_vllm")


def config_view(values: Mapping[str, ConfigValue], version: str | None) -> ConfigView:
    """Tell the trainer, keep apart what two trainers mean otherwise, and count the processes."""
    seen = dict(values)
    owner = _trainer(seen)
    if owner is not None:
        seen.setdefault("config_class", owner)
    trainer = TRAINERS.get(str(owner.value)) if owner else None
    seen = {scoped(key, trainer): value for key, value in seen.items()}
    if trainer == "grpo" and version_tuple(version) == (0, 14):
        per_device = seen.pop("per_device_train_batch_size", None)
        if per_device is not None:
            seen["prompts_per_device"] = per_device
    processes = _processes(seen)
    if processes is not None:
        seen["num_processes"] = processes
    dead = {} if uses_vllm(seen) else {k: _NO_VLLM for k in seen if k.startswith("vllm_")}
    return ConfigView({k: v for k, v in seen.items() if k not in dead}, dead)


def config_versions(values: Mapping[str, ConfigValue]) -> tuple[str, ...]:
    """Return the newest and the oldest version that have all these keys."""
    owner = _trainer(values)
    trainer = TRAINERS.get(str(owner.value)) if owner else None
    own = [key for key in values if ("*", key) not in history()]  # what TRL alone has
    all_changes = [history().get((trainer or "", key), ()) for key in own]
    since = [changes[0][0] for changes in all_changes if changes]
    until = [changes[-1][0] for changes in all_changes if changes and not changes[-1][2]]
    fits = [v for v in VERSIONS if v >= max(since, default=OLDEST) and all(v < u for u in until)]
    if not fits:
        return ()
    return tuple(dict.fromkeys(f"{v[0]}.{v[1]}" for v in (fits[-1], fits[0])))


def _trainer(values: Mapping[str, ConfigValue]) -> ConfigValue | None:
    """Return the configuration class: as the run states it, else as its keys show."""
    stated = values.get("config_class")
    if stated is not None:
        return stated
    for name, keys in _OWN_KEYS:
        sign = next((values[key] for key in keys if key in values), None)
        if sign is not None:
            made = Provenance(ProvenanceKind.DERIVED, sign.provenance.source, sign.provenance.line)
            return ConfigValue(sign.key, name, made)
    return None


def _processes(values: Mapping[str, ConfigValue]) -> ConfigValue | None:
    """Return the number of processes, where launcher or batch sizes tell it."""
    if "num_processes" in values:
        return values["num_processes"]
    per_node, nodes = values.get("nproc_per_node"), values.get("nnodes")
    a = number(per_node.value) if per_node else None
    b = number(nodes.value) if nodes else 1.0
    if per_node is not None and a is not None and b is not None:
        return _made(per_node, int(a * b), "nproc_per_node × nnodes")
    keys = ("generation_batch_size", "per_device_train_batch_size", "steps_per_generation")
    sizes = [number(values[key].value) if key in values else None for key in keys]
    whole, per_device, steps = sizes
    if whole and per_device and steps and whole % (per_device * steps) == 0:
        text = "generation_batch_size / (per_device_train_batch_size × steps_per_generation)"
        return _made(values[keys[0]], int(whole / (per_device * steps)), text)
    return None


def _made(main: ConfigValue, value: int, text: str) -> ConfigValue:
    place = main.provenance
    made = Provenance(ProvenanceKind.DERIVED, place.source, place.line, text)
    return ConfigValue(main.key, value, made)
