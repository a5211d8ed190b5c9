"""verl's configuration keys, 0.2 to 0.9, FSDP and Megatron trainers.

Sources: the composed configurations of the tags v0.3.0 to v0.9.0 and the code that reads them;
0.9.1 was run.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue, Provenance, ProvenanceKind
from align.frameworks.config_table import (
    NOT_SET,
    ConfigView,
    Formula,
    NotSet,
    number,
)
from align.frameworks.verl_dead import dead_keys, engine_of
from align.frameworks.verl_defaults import config_defaults as config_defaults
from align.frameworks.verl_defaults import default_history as default_history
from align.frameworks.verl_fixed import config_fixed as config_fixed
from align.frameworks.verl_harmless import CONFIG_IGNORED as CONFIG_IGNORED
from align.frameworks.verl_keys import CONFIG_KEYS as CONFIG_KEYS
from align.frameworks.verl_versions import RELEASES, before
from align.frameworks.verl_versions import config_version as config_version

READS_MODEL_CONFIG = True
CONFIG_RELEASES = RELEASES
CONFIG_VARIANTS: dict[str, dict[str, ConfigLeaf]] = {
    "FSDP": {"actor_rollout_ref.actor.strategy": "fsdp"},
    "Megatron": {"actor_rollout_ref.actor.strategy": "megatron"},
}

CONFIG_SIGNS = (
    "actor_rollout_ref.*",
    "algorithm.adv_estimator",
    "trainer.n_gpus_per_node",
)

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"


def _if_set(value: ConfigLeaf) -> ConfigLeaf | NotSet:
    return NOT_SET if value is None else value


def _warmup_steps(steps: ConfigLeaf) -> ConfigLeaf | NotSet:
    count = number(steps)
    return NOT_SET if count is None or count <= 0 else steps


def _warmup_fraction(steps: ConfigLeaf, ratio: ConfigLeaf) -> ConfigLeaf | NotSet:
    count = number(steps)
    return NOT_SET if count is not None and count > 0 else ratio


def _min_lr(ratio: ConfigLeaf, lr: ConfigLeaf) -> float | NotSet:
    peak = number(lr)
    return NOT_SET if peak is None else (number(ratio) or 0.0) * peak


def _world_size(nodes: ConfigLeaf, per_node: ConfigLeaf) -> float | NotSet:
    a, b = number(nodes), number(per_node)
    return NOT_SET if a is None or b is None else int(a * b)


def _optimizer(name: ConfigLeaf) -> ConfigLeaf:
    # Megatron's "adam" decouples weight decay, as AdamW does.
    return "adamw" if str(name).lower() in ("adam", "adamw") else name


CONFIG_FORMULAS: tuple[Formula, ...] = (
    Formula(
        "data.gen_batch_size",
        ("data.gen_batch_size",),
        _if_set,
        "gen_batch_size",
    ),
    Formula(
        "data.seed",
        ("data.seed",),
        lambda seed: 67280421310721 if seed is None else seed,
        "data.seed; null leaves torch.Generator at its constant seed 67280421310721",
    ),
    Formula(
        "data.length_filter",
        ("data.filter_overlong_prompts",),
        lambda on: "length <= max_prompt_length" if str(on).lower() == "true" else "no filter",
        "filter_overlong_prompts keeps length <= max_prompt_length",
    ),
    Formula(
        "model.tokenizer",
        (f"{_MODEL}.tokenizer_path",),
        _if_set,
        "tokenizer_path",
    ),
    Formula(
        "actor.lr_warmup_steps",
        (f"{_ACTOR}.optim.lr_warmup_steps",),
        _warmup_steps,
        "lr_warmup_steps where it is above 0",
    ),
    Formula(
        "actor.lr_warmup_fraction",
        (f"{_ACTOR}.optim.lr_warmup_steps", f"{_ACTOR}.optim.lr_warmup_steps_ratio"),
        _warmup_fraction,
        "lr_warmup_steps_ratio where lr_warmup_steps is not above 0",
    ),
    Formula(
        "actor.lr_schedule",
        (f"{_ACTOR}.optim.lr_scheduler_type", f"{_ACTOR}.optim.warmup_style"),
        lambda kind, style: kind if style is None else style,
        "warmup_style (its old name) where it is set, else lr_scheduler_type",
    ),
    *(
        Formula("actor.lr_schedule", (f"{_ACTOR}.optim.{key}",), lambda style: style, key)
        for key in ("lr_scheduler_type", "lr_decay_style", "warmup_style")
    ),
    Formula(
        "actor.min_lr",
        (f"{_ACTOR}.optim.min_lr_ratio", f"{_ACTOR}.optim.lr"),
        _min_lr,
        "min_lr_ratio × lr",
    ),
    Formula("actor.min_lr", (f"{_ACTOR}.optim.min_lr",), lambda lr: lr, "min_lr"),
    Formula("actor.adam_beta1", (f"{_ACTOR}.optim.betas",), lambda betas: betas[0], "betas[0]"),
    Formula("actor.adam_beta2", (f"{_ACTOR}.optim.betas",), lambda betas: betas[1], "betas[1]"),
    Formula(
        "actor.optimizer",
        (f"{_ACTOR}.optim.optimizer",),
        _optimizer,
        "adam and AdamW both decouple weight decay",
    ),
    Formula(
        "critic.optimizer",
        ("critic.optim.optimizer",),
        _optimizer,
        "adam and AdamW both decouple weight decay",
    ),
    Formula(
        "trainer.world_size",
        ("trainer.nnodes", "trainer.n_gpus_per_node"),
        _world_size,
        "nnodes × n_gpus_per_node",
    ),
    Formula(
        "critic.used",
        ("critic.enable", "algorithm.adv_estimator"),
        lambda enable, estimator: estimator == "gae" if enable is None else enable,
        "critic.enable, else adv_estimator is gae",
    ),
    Formula(
        "critic.used",
        ("algorithm.adv_estimator",),
        lambda estimator: estimator == "gae",
        "adv_estimator is gae",
    ),
    Formula(
        "ref.used",
        (f"{_ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"),
        lambda in_loss, in_reward: bool(in_loss) or bool(in_reward),
        "use_kl_loss or use_kl_in_reward",
    ),
)


def config_view(values: Mapping[str, ConfigValue], version: str | None) -> ConfigView:
    """Leave out keys that are not read, and a sampler that is null, which is the version's own.

    `verl_dead` knows what is read when and by which engine. Sizes that an old version counts in
    responses are given in prompts.
    """
    dead = dead_keys(values, values, version)
    kept = {
        key: value
        for key, value in values.items()
        if key not in dead and not (key == "data.sampler.class_path" and value.value is None)
    }
    return ConfigView(_in_prompts(kept, version), dead)


def _in_prompts(
    values: Mapping[str, ConfigValue], version: str | None
) -> Mapping[str, ConfigValue]:
    """Divide mini-batch sizes by rollout.n where the version does not multiply by it.

    Source: the actor's counts responses in 0.1, and in 0.2 with Megatron; the critic's up to 0.3.
    """
    n = number(values[f"{_ROLLOUT}.n"].value) if f"{_ROLLOUT}.n" in values else None
    actor_since = "0.3.0" if engine_of(values) == "megatron" else "0.2.0"
    sizes = {f"{_ACTOR}.ppo_mini_batch_size": actor_since, "critic.ppo_mini_batch_size": "0.4.0"}
    made = dict(values)
    for key, since in sizes.items():
        size = number(values[key].value) if key in values else None
        if n and size is not None and before(version, since):
            source = values[key].provenance
            made[key] = ConfigValue(
                key,
                int(size / n) if (size / n).is_integer() else size / n,
                Provenance(
                    ProvenanceKind.DERIVED,
                    source.source,
                    source.line,
                    f"ppo_mini_batch_size / rollout.n: verl {version} counts responses",
                ),
            )
    return made
