"""MindSpeed-RL's configuration keys, 2025-03 to 2.3.0 and master of 2026-04.

The sections overlay each other: a Megatron key of the actor is looked up in ``actor_config``, then
``megatron_training``, then the model's file, and has a default of its own otherwise. `config_view`
resolves that into keys ``actor.<key>``. What Megatron prints when it starts has the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue, ProvenanceKind
from align.core.text import Text
from align.frameworks.config_table import (
    NOT_SET,
    ConfigView,
    Formula,
    NotSet,
    number,
)
from align.frameworks.megatron_arguments import arguments
from align.frameworks.megatron_formulas import formulas, negated
from align.frameworks.mindspeed_rl_defaults import UNREAD_BEFORE
from align.frameworks.mindspeed_rl_defaults import config_defaults as config_defaults
from align.frameworks.mindspeed_rl_eras import ERAS, MASTER, era_of, fitting_eras, is_before
from align.frameworks.mindspeed_rl_fixed import config_fixed as config_fixed
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

_IN_SEQUENCES = "rl_config.mini_batch_size (sequences)"
_ONE_BUDGET = "rl_config.max_packing_token_size (every pass)"
_IN_SEQUENCES_WHERE_PRINTED = ("global_batch_size", "micro_batch_size")
_WORKERS_OWN = Text(
    "a worker prints its own number of sequences, not the run's",
    "worker 打印的是自己的序列数，而不是该次运行的设置",
)
_UNREAD = Text(
    "the loss of before 2025-05-15 does not read it", "2025-05-15 之前的损失函数不读取该项"
)
_SINCE = Text(
    "mini_batch_size is in prompts, as since 2025-05-15 (61effad); before that it was in sequences",
    "mini_batch_size 以 prompt 计，2025-05-15（61effad）起如此；此前以序列计",
)
_BEFORE = Text(
    "mini_batch_size is in sequences: keys of before 2025-05-15 are used",
    "mini_batch_size 以序列计：使用了 2025-05-15 之前的键",
)


def _mode(mode: ConfigLeaf) -> str:
    return "async" if mode else "sync"


def _estimator(name: ConfigLeaf) -> ConfigLeaf:
    return "grpo" if name == "group_norm" else name


def _kl_in_loss(stage: ConfigLeaf) -> bool | NotSet:
    if stage not in ("ray_grpo", "ray_dapo"):
        return NOT_SET
    return stage == "ray_grpo"


def _clip(bound: str) -> Formula:
    def convert(stage: ConfigLeaf, higher: ConfigLeaf, own: ConfigLeaf, both: ConfigLeaf) -> object:
        return own if stage == "ray_dapo" and higher else both

    return Formula(
        f"loss.clip_ratio_{bound}",
        (
            "actor.stage",
            "rl_config.clip_higher_enable",
            f"rl_config.clip_ratio_{bound}",
            "rl_config.clip_ratio",
        ),
        convert,
        f"clip_ratio_{bound} with clip_higher_enable (stage ray_dapo), else clip_ratio",
    )


def _aggregation(stage: ConfigLeaf, by_token: ConfigLeaf) -> str:
    return "token-mean" if stage != "ray_dapo" or by_token else "seq-mean-token-mean"


def _shorter(length: ConfigLeaf, limit: ConfigLeaf) -> float | NotSet:
    cut, longest = number(length), number(limit)
    if cut is None or longest is None:
        return NOT_SET
    return int(min(cut, longest))


def _prompts(sequences: ConfigLeaf, n: ConfigLeaf) -> float | NotSet:
    count, group = number(sequences), number(n)
    if count is None or not group:
        return NOT_SET
    return int(count / group) if (count / group).is_integer() else count / group


CONFIG_FORMULAS: tuple[Formula, ...] = (
    *formulas("actor."),
    Formula(
        "model.linear_bias", ("actor.disable_bias_linear",), negated, "not disable_bias_linear"
    ),
    Formula(
        "actor.dtype",
        ("actor.bf16",),
        lambda bf16: "bfloat16" if bf16 else "float32",
        "bfloat16 with bf16",
    ),
    Formula(
        "actor.master_dtype",
        ("actor.bf16",),
        lambda bf16: "float32",
        "Megatron's optimizer keeps float32 main parameters",
    ),
    Formula(
        "actor.lr_warmup_fraction",
        ("actor.lr_warmup_fraction",),
        lambda fraction: 0.0 if fraction is None else fraction,
        "lr_warmup_fraction, else 0",
    ),
    *(
        Formula(f"actor.precision_options.{name}", (f"actor.no_{name}",), negated, f"not no_{name}")
        for name in (
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "gradient_accumulation_fusion",
        )
    ),
    Formula("data.shuffle", ("actor.no_shuffle",), negated, "not no_shuffle"),
    Formula(
        "data.prompt_cut_length",
        ("actor.seq_length", "rl_config.max_prompt_length"),
        _shorter,
        "min(seq_length, max_prompt_length)",
    ),
    Formula(
        "actor.mini_batch_size",
        (_IN_SEQUENCES, "rl_config.n_samples_per_prompt"),
        _prompts,
        "mini_batch_size / n_samples_per_prompt",
        _BEFORE,
    ),
    Formula(
        "actor.mini_batch_size",
        ("rl_config.mini_batch_size",),
        lambda size: size,
        "mini_batch_size",
        _SINCE,
    ),
    *(
        Formula(
            field,
            (_ONE_BUDGET,),
            lambda size: size,
            "max_packing_token_size, the one budget of every pass up to 2.1.0",
        )
        for field in (
            "actor.max_tokens_per_micro_batch",
            "old_log_prob.max_tokens",
            "ref.max_tokens",
        )
    ),
    Formula(
        "old_log_prob.micro_batch_size",
        ("rl_config.actor_forward_micro_batch_size", "actor.micro_batch_size"),
        lambda own, update: update if own is None else own,
        "actor_forward_micro_batch_size, else micro_batch_size",
    ),
    Formula("advantage.estimator", ("rl_config.adv_estimator",), _estimator, "group_norm is grpo"),
    Formula(
        "reward.rules",
        ("rl_config.verifier_function",),
        lambda names: names,
        "verifier_function",
    ),
    Formula(
        "critic.used",
        ("rl_config.adv_estimator",),
        lambda name: name == "gae",
        "adv_estimator is gae",
    ),
    _clip("low"),
    _clip("high"),
    Formula(
        "loss.aggregation",
        ("actor.stage", "rl_config.token_level_loss"),
        _aggregation,
        "token-mean per micro-batch; with stage ray_dapo as token_level_loss says",
    ),
    Formula(
        "loss.use_kl", ("actor.stage",), _kl_in_loss, "always with ray_grpo, never with ray_dapo"
    ),
    Formula(
        "loss.kl_coef",
        ("actor.stage", "rl_config.init_kl_coef"),
        lambda stage, coefficient: coefficient if stage == "ray_grpo" else NOT_SET,
        "init_kl_coef with stage ray_grpo",
    ),
    Formula(
        "loss.kl_type",
        ("actor.stage", "rl_config.kl_penalty"),
        lambda stage, kind: kind if stage == "ray_grpo" else NOT_SET,
        "kl_penalty with stage ray_grpo",
    ),
    Formula(
        "reward.kl_coef",
        ("actor.stage", "rl_config.init_kl_coef"),
        lambda stage, coefficient: coefficient if stage == "ray_ppo" else NOT_SET,
        "init_kl_coef with stage ray_ppo",
    ),
    Formula(
        "reward.kl_penalty",
        ("actor.stage", "rl_config.kl_penalty"),
        lambda stage, kind: kind if stage == "ray_ppo" else NOT_SET,
        "kl_penalty with stage ray_ppo",
    ),
    Formula(
        "ref.used",
        ("actor.stage",),
        lambda stage: True if stage == "ray_grpo" else NOT_SET,
        "stage ray_grpo",
    ),
    Formula("rollout.mode", ("rl_config.async_engine",), _mode, "async with async_engine"),
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
            view[_IN_SEQUENCES] = view.pop("rl_config.mini_batch_size")
    if era_of(version) == "2.1.0" and "rl_config.max_packing_token_size" in view:
        view[_ONE_BUDGET] = view.pop("rl_config.max_packing_token_size")
    taken = (*view, *printed, *dead)
    rest = {k: v for k, v in values.items() if not k.startswith(_OVERLAID) and k not in taken}
    return ConfigView(view | rest, dead)


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
