"""MindSpeed-RL's configuration keys, 2025-03 to 2.3.0 and master of 2026-04.

The sections overlay each other: a Megatron key of the actor is looked up in ``actor_config``, then
``megatron_training``, then the model's file, and has a default of its own otherwise. `config_view`
resolves that into keys ``actor.<key>``.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from align.core.config_value import ConfigLeaf, ConfigValue
from align.frameworks.config_table import (
    NOT_SET,
    ConfigView,
    Default,
    Formula,
    NotSet,
    number,
)
from align.frameworks.mindspeed_rl_harmless import CONFIG_IGNORED as CONFIG_IGNORED

READS_MODEL_CONFIG = False  # the trainer; the rollout engine does read config.json
ASSUMED_VERSION = "2.3.0"

CONFIG_SIGNS = ("megatron_training.*", "rl_config.*", "generate_config.*")

_SAMPLING = "generate_config.sampling_config"
_IN_SEQUENCES = "rl_config.mini_batch_size (sequences)"
_SINCE = (
    "mini_batch_size is in prompts, as since 2025-05-15 (61effad); before that it was in sequences"
)

CONFIG_KEYS: dict[str, str] = {
    "actor.num_layers": "model.num_layers",
    "actor.hidden_size": "model.hidden_size",
    "actor.ffn_hidden_size": "model.intermediate_size",
    "actor.num_attention_heads": "model.num_attention_heads",
    "actor.kv_channels": "model.head_dim",
    "actor.norm_epsilon": "model.rms_norm_eps",
    "actor.rotary_base": "model.rope_theta",
    "actor.rope_scaling_type": "model.rope_scaling_type",
    "actor.rope_scaling_factor": "model.rope_scaling_factor",
    "actor.max_position_embeddings": "model.max_position_embeddings",
    "actor.padded_vocab_size": "model.vocab_size",
    "actor.add_qkv_bias": "model.qkv_bias",
    "actor.qk_layernorm": "model.qk_norm",
    "actor.normalization": "model.normalization",
    "actor.position_embedding_type": "model.position_embedding",
    "actor.num_experts": "model.num_experts",
    "actor.moe_ffn_hidden_size": "model.moe_intermediate_size",
    "actor.attention_softmax_in_fp32": "model.softmax_in_fp32",
    "actor.use_flash_attn": "model.flash_attention",
    "actor.use_fused_rmsnorm": "model.fused_rms_norm",
    "actor.use_fused_swiglu": "model.fused_swiglu",
    "actor.use_fused_rotary_pos_emb": "model.fused_rope",
    "actor.moe_grouped_gemm": "model.grouped_gemm",
    "actor.attention_dropout": "model.attention_dropout",
    "actor.hidden_dropout": "model.hidden_dropout",
    "actor.tokenizer_name_or_path": "model.name",
    "actor.prompt_type": "data.prompt_template",
    "actor.lora_alpha": "model.lora.alpha",
    "actor.lora_target_modules": "model.lora.target_modules",
    "actor.global_batch_size": "data.train_batch_size",
    "actor.seq_length": "data.sequence_length",
    "actor.seed": "data.seed",
    "actor.data_path": "data.train_files",
    "actor.num_workers": "data.dataloader_num_workers",
    "actor.train_iters": "trainer.total_steps",
    "actor.micro_batch_size": "actor.micro_batch_size",
    "actor.lr": "actor.lr",
    "actor.lr_decay_style": "actor.lr_schedule",
    "actor.min_lr": "actor.min_lr",
    "actor.weight_decay": "actor.weight_decay",
    "actor.clip_grad": "actor.clip_grad",
    "actor.adam_beta1": "actor.adam_beta1",
    "actor.adam_beta2": "actor.adam_beta2",
    "actor.tensor_model_parallel_size": "actor.tensor_parallel_size",
    "actor.pipeline_model_parallel_size": "actor.pipeline_parallel_size",
    "actor.context_parallel_size": "actor.context_parallel_size",
    "actor.expert_model_parallel_size": "actor.expert_parallel_size",
    "actor.sequence_parallel": "actor.sequence_parallel",
    "actor.npu_deterministic": "actor.deterministic",
    "actor.recompute_*": "actor.recompute_options.*",
    "actor.swap_optimizer": "actor.offload.swap_optimizer",
    "actor.swap_attention": "actor.offload.swap_attention",
    "actor.reuse_fp32_param": "actor.offload.reuse_fp32_param",
    "actor.dpo_loss_type": "loss.options.dpo_loss_type",
    "actor.attention_mask_type": "model.override.attention_mask_type",
    "actor.reset_attention_mask": "actor.precision_options.reset_attention_mask",
    "actor.reset_position_ids": "model.override.reset_position_ids",
    "actor.initial_loss_scale": "actor.precision_options.initial_loss_scale",
    "actor.spec": "model.override.spec",
    "actor.transformer_impl": "actor.precision_options.transformer_impl",
    "actor.*_lora_rank": "model.override.*_lora_rank",
    "actor.qk_pos_emb_head_dim": "model.override.qk_pos_emb_head_dim",
    "actor.qk_head_dim": "model.override.qk_head_dim",
    "actor.v_head_dim": "model.override.v_head_dim",
    "actor.multi_latent_attention": "model.override.multi_latent_attention",
    "actor.first_k_dense_replace": "model.override.first_k_dense_replace",
    "actor.moe_layer_freq": "model.override.moe_layer_freq",
    "actor.n_shared_experts": "model.override.n_shared_experts",
    "actor.moe_router_*": "model.override.moe_router_*",
    "actor.seq_aux": "model.override.seq_aux",
    "actor.beta_fast": "model.override.rope_beta_fast",
    "actor.beta_slow": "model.override.rope_beta_slow",
    "actor.low_freq_factor": "model.override.rope_low_freq_factor",
    "actor.high_freq_factor": "model.override.rope_high_freq_factor",
    "actor.*original_max_position_embeddings": "model.override.rope_original_max_*",
    "actor.rope_scaling_mscale*": "model.override.rope_mscale*",
    "actor.noop_layers": "actor.parallel_options.noop_layers",
    "actor.num_layer_list": "actor.parallel_options.num_layer_list",
    "actor.num_layers_per_virtual_pipeline_stage": "actor.parallel_options.virtual_pipeline",
    "actor.context_parallel_algo": "actor.parallel_options.context_parallel_algo",
    "actor.use_distributed_optimizer": "actor.parallel_options.distributed_optimizer",
    "actor.overlap_*": "actor.parallel_options.overlap_*",
    "actor.use_ascend_coc": "actor.parallel_options.ascend_coc",
    "actor.coc_*": "actor.parallel_options.coc_*",
    "actor.moe_*": "actor.parallel_options.moe_*",
    "actor.use_fused_*": "actor.precision_options.fused_*",
    "actor.*gradient_accumulation_fusion": "actor.precision_options.*gradient_accumulation_fusion",
    "actor.no_*_fusion": "actor.precision_options.no_*_fusion",
    "actor.load": "trainer.resume",
    "rl_config.n_samples_per_prompt": "rollout.n",
    "rl_config.mini_batch_size": "actor.mini_batch_size",
    "rl_config.epochs": "actor.ppo_epochs",
    "rl_config.shuffle_mini_batch": "actor.shuffle_mini_batches",
    "rl_config.use_dynamic_bsz": "actor.dynamic_batch",
    "rl_config.update_max_packing_token_size": "actor.max_tokens_per_micro_batch",
    "rl_config.actor_forward_micro_batch_size": "old_log_prob.micro_batch_size",
    "rl_config.actor_max_packing_token_size": "old_log_prob.max_tokens",
    "rl_config.ref_forward_micro_batch_size": "ref.micro_batch_size",
    "rl_config.ref_max_packing_token_size": "ref.max_tokens",
    "rl_config.use_remove_padding": "model.remove_padding",
    "rl_config.use_dp_batch_balance": "trainer.balance_batch",
    "rl_config.guarantee_order": "data.guarantee_order",
    "rl_config.max_prompt_length": "data.max_prompt_length",
    "rl_config.gamma": "advantage.gamma",
    "rl_config.lam": "advantage.lam",
    "rl_config.advantage_whiten": "advantage.options.whiten",
    "rl_config.entropy_coeff": "loss.entropy_coef",
    "rl_config.cliprange_value": "critic.clip_range",
    "rl_config.use_kl_in_reward": "reward.use_kl_in_reward",
    "rl_config.kl_ctrl_type": "reward.kl_control",
    "rl_config.kl_horizon": "reward.kl_horizon",
    "rl_config.kl_target": "reward.kl_target",
    "rl_config.verifier_function": "reward.function",
    "rl_config.verifier_weight": "reward.function_weights",
    "rl_config.rule_reward": "reward.options.rule_reward",
    "rl_config.overlong_buffer_enable": "reward.overlong_penalty",
    "rl_config.overlong_buffer": "reward.overlong_buffer",
    "rl_config.overlong_buffer_penalty_factor": "reward.overlong_penalty_factor",
    "rl_config.rollout_max_tokens": "reward.overlong_max_length",
    "rl_config.filter_groups_enable": "reward.filter_groups",
    "rl_config.filter_groups_metric": "reward.filter_groups_metric",
    "rl_config.filter_groups_max_batches": "reward.filter_groups_max_batches",
    "rl_config.filter_groups_*": "reward.filter_groups_options.*",
    "rl_config.actor_resource.num_npus": "trainer.world_size",
    "rl_config.multi_turn_enable": "rollout.multi_turn.enable",
    "rl_config.tool_*": "rollout.multi_turn.tool_*",
    "rl_config.max_tool_calls": "rollout.multi_turn.max_tool_calls",
    "rl_config.max_parallel_calls": "rollout.multi_turn.max_parallel_calls",
    "rl_config.max_tool_response_length": "rollout.multi_turn.max_tool_response_length",
    "rl_config.max_total_response_length": "rollout.multi_turn.max_total_response_length",
    "rl_config.beta": "loss.options.dpo_beta",
    "rl_config.partial_rollout_max_split": "trainer.mode.partial_rollout_max_split",
    "generate_config.dtype": "rollout.dtype",
    "generate_config.enforce_eager": "rollout.enforce_eager",
    "generate_config.enable_prefix_caching": "rollout.prefix_caching",
    "generate_config.max_num_seqs": "rollout.max_num_seqs",
    "generate_config.max_num_batched_tokens": "rollout.max_num_batched_tokens",
    "generate_config.max_model_len": "rollout.max_model_len",
    "generate_config.infer_tensor_parallel_size": "rollout.tensor_parallel_size",
    "generate_config.infer_pipeline_parallel_size": "rollout.pipeline_parallel_size",
    "generate_config.infer_expert_parallel_size": "rollout.expert_parallel_size",
    "generate_config.data_parallel_size": "rollout.data_parallel_size",
    "generate_config.offload_train_optimizer": "actor.offload.optimizer",
    "generate_config.offload_train_grad": "actor.offload.grad",
    "generate_config.offload_train_param": "actor.offload.param",
    "generate_config.enable_expert_parallel": "rollout.engine_options.enable_expert_parallel",
    "generate_config.num_scheduler_steps": "rollout.engine_options.num_scheduler_steps",
    "generate_config.torchair_graph": "rollout.engine_options.torchair_graph",
    "generate_config.ascend_scheduler*": "rollout.engine_options.ascend_scheduler*",
    f"{_SAMPLING}.temperature": "rollout.temperature",
    f"{_SAMPLING}.top_p": "rollout.top_p",
    f"{_SAMPLING}.top_k": "rollout.top_k",
    f"{_SAMPLING}.min_p": "rollout.min_p",
    f"{_SAMPLING}.max_tokens": "data.max_response_length",
    f"{_SAMPLING}.seed": "rollout.seed",
    "critic.lr": "critic.lr",
    "critic.*": "critic.*",
    "ref.*": "ref.*",
    "reward.*": "reward.model.*",
}


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
    return NOT_SET if count is None or not group else count / group


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
        "mini_batch_size is in sequences: keys of before 2025-05-15 are used",
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


def config_defaults(
    values: Mapping[str, ConfigValue], version: str | None, whole: bool
) -> Mapping[str, Default]:
    """Return what applies where a key is not set: the defaults of its configuration classes.

    A section that is absent as a whole (a DPO run has no ``rl_config``) has no defaults.
    """
    sections = {key.partition(".")[0] for key in values}
    source = f"default of MindSpeed-RL {version or ASSUMED_VERSION}"
    assumption = (
        None if version else f"MindSpeed-RL {ASSUMED_VERSION}: the run does not state its version"
    )
    unknown = () if "actor.num_layers" in values else _IN_MODEL_FILE
    return {
        key: Default(value, source, assumption)
        for key, value in _defaults().items()
        if key.partition(".")[0] in sections and key not in unknown
    }


# What a model file sets: unknown, not default, where that file is not at hand.
_IN_MODEL_FILE = frozenset(
    f"actor.{key}"
    for key in (
        *("norm_epsilon", "rotary_base", "normalization", "position_embedding_type", "swiglu"),
        *("add_qkv_bias", "disable_bias_linear", "qk_layernorm", "group_query_attention"),
        *("num_query_groups", "kv_channels", "untie_embeddings_and_output_weights"),
        *("num_experts", "moe_router_topk", "norm_topk_prob", "moe_router_score_function"),
        *("moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_grouped_gemm"),
        *("attention_softmax_in_fp32", "rope_scaling_type", "rope_scaling_factor"),
        *("multi_latent_attention", "q_lora_rank", "kv_lora_rank", "seq_aux"),
    )
)


@cache
def _defaults() -> Mapping[str, ConfigLeaf]:
    table = files("align.frameworks").joinpath("mindspeed_rl_defaults.tsv")
    rows = _rows(table.read_text(encoding="utf-8").splitlines())
    return {row["key"]: _literal(row["default"]) for row in rows}


def _rows(lines: Iterable[str]) -> Iterable[dict[str, str]]:
    return csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)


def _literal(text: str) -> ConfigLeaf:
    value = ast.literal_eval(text)
    return tuple(value) if isinstance(value, list) else value


def user_key(key: str) -> str:
    """Return where a user writes a key that `config_view` made."""
    role, _, rest = key.partition(".")
    return f"megatron_training.{rest}" if role == "actor" else key
