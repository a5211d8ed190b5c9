"""MindSpeed-RL's configuration keys, 2025-03 to 2.3.0 and master of 2026-04.

The sections overlay each other: a Megatron key of the actor is looked up in ``actor_config``, then
``megatron_training``, then the model's file, and has a default of its own otherwise. `config_view`
resolves that into keys ``actor.<key>``.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue
from align.core.text import Text
from align.frameworks.config_table import (
    NOT_SET,
    ConfigView,
    Formula,
    NotSet,
    number,
)
from align.frameworks.mindspeed_rl_defaults import config_defaults as config_defaults
from align.frameworks.mindspeed_rl_harmless import CONFIG_IGNORED as CONFIG_IGNORED
from align.frameworks.mindspeed_rl_keys import CONFIG_KEYS as CONFIG_KEYS

READS_MODEL_CONFIG = False  # the trainer; the rollout engine does read config.json

CONFIG_SIGNS = ("megatron_training.*", "rl_config.*", "generate_config.*")

_IN_SEQUENCES = "rl_config.mini_batch_size (sequences)"
_SINCE = Text(
    "mini_batch_size is in prompts, as since 2025-05-15 (61effad); before that it was in sequences",
    "mini_batch_size 以 prompt 计，2025-05-15（61effad）起如此；此前以序列计",
)
_BEFORE = Text(
    "mini_batch_size is in sequences: keys of before 2025-05-15 are used",
    "mini_batch_size 以序列计：使用了 2025-05-15 之前的键",
)


def _kv_heads(grouped: ConfigLeaf, groups: ConfigLeaf, heads: ConfigLeaf) -> ConfigLeaf:
    return groups if grouped else heads


def _not(value: ConfigLeaf) -> bool:
    return not value


def _head_dim(channels: ConfigLeaf, hidden: ConfigLeaf, heads: ConfigLeaf) -> ConfigLeaf | NotSet:
    width, count = number(hidden), number(heads)
    if channels is not None or not width or not count:
        return NOT_SET if channels is None else channels
    return int(width // count)


def _mode(mode: ConfigLeaf) -> str:
    return "async" if mode else "sync"


def _estimator(name: ConfigLeaf) -> ConfigLeaf:
    return "grpo" if name == "group_norm" else name


def _is_moe(experts: ConfigLeaf, value: ConfigLeaf) -> ConfigLeaf | NotSet:
    return NOT_SET if experts is None else value


def _aux_loss(experts: ConfigLeaf, kind: ConfigLeaf, coefficient: ConfigLeaf) -> ConfigLeaf:
    return coefficient if experts is not None and kind == "aux_loss" else 0.0


def _kl_in_loss(stage: ConfigLeaf) -> bool | NotSet:
    if stage not in ("ray_grpo", "ray_dapo"):
        return NOT_SET
    return stage == "ray_grpo"


def _reduce_dtype(bf16: ConfigLeaf, fp32: ConfigLeaf) -> str:
    return "float32" if bf16 or fp32 else "native"


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


def _prompts(sequences: ConfigLeaf, n: ConfigLeaf) -> float | NotSet:
    count, group = number(sequences), number(n)
    if count is None or not group:
        return NOT_SET
    return int(count / group) if (count / group).is_integer() else count / group


CONFIG_FORMULAS: tuple[Formula, ...] = (
    Formula(
        "model.num_key_value_heads",
        ("actor.group_query_attention", "actor.num_query_groups", "actor.num_attention_heads"),
        _kv_heads,
        "num_query_groups with group_query_attention, else num_attention_heads",
    ),
    Formula(
        "model.head_dim",
        ("actor.kv_channels", "actor.hidden_size", "actor.num_attention_heads"),
        _head_dim,
        "kv_channels, else hidden_size / num_attention_heads",
    ),
    Formula(
        "model.tie_word_embeddings",
        ("actor.untie_embeddings_and_output_weights",),
        _not,
        "not untie_embeddings_and_output_weights",
    ),
    Formula("model.linear_bias", ("actor.disable_bias_linear",), _not, "not disable_bias_linear"),
    Formula(
        "model.activation",
        ("actor.swiglu",),
        lambda swiglu: "silu" if swiglu else "gelu",
        "silu with swiglu, else gelu",
    ),
    Formula(
        "model.num_experts_per_token",
        ("actor.num_experts", "actor.moe_router_topk"),
        _is_moe,
        "moe_router_topk where there are experts",
    ),
    Formula(
        "model.norm_topk_prob",
        ("actor.num_experts", "actor.norm_topk_prob"),
        _is_moe,
        "norm_topk_prob where there are experts",
    ),
    Formula(
        "model.router_score",
        ("actor.num_experts", "actor.moe_router_score_function"),
        _is_moe,
        "moe_router_score_function where there are experts",
    ),
    Formula(
        "model.moe_aux_loss_coef",
        (
            "actor.num_experts",
            "actor.moe_router_load_balancing_type",
            "actor.moe_aux_loss_coeff",
        ),
        _aux_loss,
        "moe_aux_loss_coeff with experts and load balancing aux_loss, else 0",
    ),
    Formula(
        "model.lora_rank",
        ("actor.lora_target_modules", "actor.lora_r"),
        lambda targets, rank: rank if targets else 0,
        "lora_r where lora_target_modules is set, else 0",
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
        "actor.reduce_dtype",
        ("actor.bf16", "actor.accumulate_allreduce_grads_in_fp32"),
        _reduce_dtype,
        "float32: Megatron sets accumulate_allreduce_grads_in_fp32 with bf16",
    ),
    Formula("actor.strategy", ("actor.bf16",), lambda bf16: "megatron", "always Megatron"),
    Formula(
        "actor.optimizer",
        ("actor.optimizer",),
        lambda name: "adamw" if name == "adam" else name,
        "Megatron's adam decouples weight decay, as AdamW does",
    ),
    Formula("actor.adam_eps", ("actor.bf16",), lambda bf16: 1e-8, "Megatron's 1e-8, not settable"),
    Formula(
        "actor.lr_warmup_fraction",
        ("actor.lr_warmup_fraction",),
        lambda fraction: 0.0 if fraction is None else fraction,
        "lr_warmup_fraction, else 0",
    ),
    Formula("data.shuffle", ("actor.no_shuffle",), _not, "not no_shuffle"),
    Formula(
        "data.length_filter",
        ("rl_config.max_prompt_length",),
        lambda length: "length < max_prompt_length",
        "always on; keeps length < max_prompt_length",
    ),
    Formula("data.train_max_samples", ("actor.bf16",), lambda bf16: -1, "always all rows"),
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
    Formula(
        "old_log_prob.micro_batch_size",
        ("rl_config.actor_forward_micro_batch_size", "actor.micro_batch_size"),
        lambda own, update: update if own is None else own,
        "actor_forward_micro_batch_size, else micro_batch_size",
    ),
    Formula("advantage.estimator", ("rl_config.adv_estimator",), _estimator, "group_norm is grpo"),
    Formula(
        "advantage.normalize_by_std",
        ("rl_config.adv_estimator",),
        lambda name: True if name == "group_norm" else NOT_SET,
        "always on with group_norm",
    ),
    Formula(
        "critic.used",
        ("rl_config.adv_estimator",),
        lambda name: name == "gae",
        "adv_estimator is gae",
    ),
    _clip("low"),
    _clip("high"),
    Formula("loss.dual_clip", ("actor.stage",), lambda stage: "none", "there is no dual clip"),
    Formula("loss.mode", ("actor.stage",), lambda stage: "vanilla", "PPO's clipped loss"),
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
    Formula("rollout.engine", ("generate_config.dtype",), lambda dtype: "vllm", "always vLLM"),
    Formula("trainer.device", ("actor.bf16",), lambda bf16: "npu", "always NPU"),
)

# Keys of 2025-03 to 2025-05, when the mini-batch size was written in sequences.
_OLD_KEYS = ("rl_config.experience_count", "generate_config.micro_batch_size")
_ROLES = {
    "actor": "actor_config",
    "critic": "critic_config",
    "ref": "ref_config",
    "reward": "reward_config",
}


def config_view(values: Mapping[str, ConfigValue], version: str | None) -> ConfigView:
    """Overlay model file, ``megatron_training`` and the role's section, the last one winning.

    Source: `MegatronConfig({**megatron_training, **actor_config}, config.model)` applies the model
    file first, then the training keys. Keys with a dash are read as with an underscore.
    """
    view = {
        key: value
        for key, value in values.items()
        if key.startswith(("rl_config.", "generate_config."))
    }
    stated_roles = {role for role, section in _ROLES.items() if _section(values, section)}
    for role in sorted(stated_roles | {"actor"}):
        view |= {f"{role}.{key}": value for key, value in _role(values, role).items()}
    if any(key in values for key in _OLD_KEYS) and "rl_config.mini_batch_size" in view:
        view[_IN_SEQUENCES] = view.pop("rl_config.mini_batch_size")
    rest = {k: v for k, v in values.items() if not k.startswith(_OVERLAID) and k not in view}
    return ConfigView(view | rest)


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
