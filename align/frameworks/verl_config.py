"""verl's configuration keys, 0.2 to 0.9, FSDP and Megatron trainers.

Sources: the composed configurations of the tags v0.3.0 to v0.9.0 and the code that reads them;
0.9.1 was run.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue
from align.frameworks.config_table import (
    NOT_SET,
    ConfigView,
    Default,
    Formula,
    NotSet,
    number,
    version_tuple,
)
from align.frameworks.verl_harmless import CONFIG_IGNORED as CONFIG_IGNORED

READS_MODEL_CONFIG = True
ASSUMED_VERSION = "0.9"

CONFIG_SIGNS = (
    "actor_rollout_ref.*",
    "algorithm.adv_estimator",
    "trainer.n_gpus_per_node",
)

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"
_REF = "actor_rollout_ref.ref"

CONFIG_KEYS: dict[str, str] = {
    # data
    "data.train_batch_size": "data.train_batch_size",
    "data.max_prompt_length": "data.max_prompt_length",
    "data.max_response_length": "data.max_response_length",
    "data.truncation": "data.truncation",
    "data.train_max_samples": "data.train_max_samples",
    "data.shuffle": "data.shuffle",
    "data.dataloader_num_workers": "data.dataloader_num_workers",
    "data.sampler.class_path": "data.sampler",
    "data.train_files": "data.train_files",
    "data.apply_chat_template_kwargs": "data.chat_template.kwargs",
    "data.apply_chat_template_kwargs.*": "data.chat_template.*",
    f"{_MODEL}.custom_chat_template": "data.chat_template.custom",
    "data.tokenizer": "data.chat_template.tokenizer",
    "data.prompt_key": "data.dataset.prompt_key",
    "data.reward_fn_key": "data.dataset.reward_fn_key",
    "data.custom_cls.*": "data.dataset.*",
    "data.datagen.*": "data.dataset.datagen_*",
    "data.sampler.class_name": "data.dataset.sampler_class",
    "data.image_key": "data.dataset.image_key",
    "data.video_key": "data.dataset.video_key",
    "data.audio_key": "data.dataset.audio_key",
    "data.image_patch_size": "data.dataset.image_patch_size",
    "data.mm_processor_kwargs*": "data.dataset.mm_processor_kwargs*",
    "data.tool_config_path": "rollout.multi_turn.data_tools",
    "data.function_tool_path": "rollout.multi_turn.data_functions",
    # model
    f"{_MODEL}.path": "model.name",
    f"{_MODEL}.use_fused_kernels": "model.fused_kernels",
    f"{_MODEL}.use_liger": "model.liger",
    f"{_MODEL}.lora_rank": "model.lora_rank",
    f"{_MODEL}.lora_alpha": "model.lora.alpha",
    f"{_MODEL}.target_modules": "model.lora.target_modules",
    f"{_MODEL}.exclude_modules": "model.lora.exclude_modules",
    f"{_MODEL}.lora_adapter_path": "model.lora.adapter_path",
    f"{_MODEL}.lora.*": "model.lora.megatron.*",
    f"{_MODEL}.mtp.*": "model.mtp.*",
    f"{_MODEL}.override_config.rms_norm_eps": "model.rms_norm_eps",
    f"{_MODEL}.override_config.rope_theta": "model.rope_theta",
    f"{_MODEL}.override_config.max_position_embeddings": "model.max_position_embeddings",
    f"{_MODEL}.override_config.attention_dropout": "model.attention_dropout",
    f"{_MODEL}.override_config.attn_implementation": "model.attention_implementation",
    f"{_MODEL}.override_config.*": "model.override.*",
    f"{_MODEL}.enable_gradient_checkpointing": "actor.recompute",
    f"{_MODEL}.enable_activation_offload": "actor.offload.activation",
    # actor
    f"{_ACTOR}.strategy": "actor.strategy",
    f"{_ACTOR}.ppo_mini_batch_size": "actor.mini_batch_size",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": "actor.micro_batch_size",
    f"{_ACTOR}.use_dynamic_bsz": "actor.dynamic_batch",
    f"{_ACTOR}.ppo_max_token_len_per_gpu": "actor.max_tokens_per_micro_batch",
    f"{_ACTOR}.ppo_epochs": "actor.ppo_epochs",
    f"{_ACTOR}.shuffle": "actor.shuffle_mini_batches",
    f"{_ACTOR}.data_loader_seed": "actor.shuffle_seed",
    f"{_ACTOR}.clip_ratio": "loss.clip_ratio",
    f"{_ACTOR}.clip_ratio_low": "loss.clip_ratio_low",
    f"{_ACTOR}.clip_ratio_high": "loss.clip_ratio_high",
    f"{_ACTOR}.clip_ratio_c": "loss.dual_clip",
    f"{_ACTOR}.policy_loss.loss_mode": "loss.mode",
    f"{_ACTOR}.policy_loss.*": "loss.mode_options.*",
    f"{_ACTOR}.tau_pos": "loss.mode_options.tau_pos",
    f"{_ACTOR}.tau_neg": "loss.mode_options.tau_neg",
    f"{_ACTOR}.loss_agg_mode": "loss.aggregation",
    f"{_ACTOR}.loss_scale_factor": "loss.scale_factor",
    f"{_ACTOR}.entropy_coeff": "loss.entropy_coef",
    f"{_ACTOR}.use_kl_loss": "loss.use_kl",
    f"{_ACTOR}.kl_loss_coef": "loss.kl_coef",
    f"{_ACTOR}.kl_loss_type": "loss.kl_type",
    f"{_ACTOR}.tis_imp_ratio_cap": "loss.rollout_correction.tis_imp_ratio_cap",
    f"{_ACTOR}.freeze_vision_tower": "loss.options.freeze_vision_tower",
    f"{_ACTOR}.use_prefix_grouper": "actor.precision_options.prefix_grouper",
    f"{_ACTOR}.use_torch_compile": "actor.compile",
    f"{_ACTOR}.optim.lr": "actor.lr",
    f"{_ACTOR}.optim.weight_decay": "actor.weight_decay",
    f"{_ACTOR}.optim.clip_grad": "actor.clip_grad",
    f"{_ACTOR}.grad_clip": "actor.clip_grad",
    f"{_ACTOR}.optim.override_optimizer_config.eps": "actor.adam_eps",
    f"{_ACTOR}.optim.override_optimizer_config.*": "actor.optimizer_options.*",
    f"{_ACTOR}.optim.optimizer_impl": "actor.optimizer_options.implementation",
    f"{_ACTOR}.optim.num_cycles": "actor.lr_options.num_cycles",
    f"{_ACTOR}.optim.lr_wsd_decay_steps": "actor.lr_options.wsd_decay_steps",
    f"{_ACTOR}.optim.lr_wsd_decay_style": "actor.lr_options.wsd_decay_style",
    f"{_ACTOR}.optim.lr_decay_steps": "actor.lr_options.decay_steps",
    f"{_ACTOR}.optim.lr_warmup_init": "actor.lr_options.warmup_init",
    f"{_ACTOR}.optim.zero_indexed_step": "actor.lr_options.zero_indexed_step",
    f"{_ACTOR}.optim.weight_decay_incr_style": "actor.optimizer_options.weight_decay_incr_style",
    f"{_ACTOR}.optim.use_precision_aware_optimizer": "actor.precision_options.precision_aware",
    f"{_ACTOR}.optim.main_grads_dtype": "actor.precision_options.main_grads_dtype",
    f"{_ACTOR}.optim.exp_avg_dtype": "actor.precision_options.exp_avg_dtype",
    f"{_ACTOR}.optim.exp_avg_sq_dtype": "actor.precision_options.exp_avg_sq_dtype",
    f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype": "actor.dtype",
    f"{_ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "actor.reduce_dtype",
    f"{_ACTOR}.fsdp_config.mixed_precision.buffer_dtype": "actor.buffer_dtype",
    f"{_ACTOR}.fsdp_config.dtype": "actor.dtype",
    f"{_ACTOR}.fsdp_config.model_dtype": "actor.master_dtype",
    f"{_ACTOR}.fsdp_config.fsdp_size": "actor.fsdp_size",
    f"{_ACTOR}.fsdp_config.full_determinism": "actor.deterministic",
    f"{_ACTOR}.fsdp_config.seed": "actor.seed",
    f"{_ACTOR}.fsdp_config.param_offload": "actor.offload.param",
    f"{_ACTOR}.fsdp_config.optimizer_offload": "actor.offload.optimizer",
    f"{_ACTOR}.fsdp_config.grad_offload": "actor.offload.grad",
    f"{_ACTOR}.fsdp_config.offload_policy": "actor.offload.policy",
    f"{_ACTOR}.qat.*": "actor.qat.*",
    f"{_ACTOR}.fsdp_config.qat.*": "actor.qat.*",
    f"{_ACTOR}.fsdp_config.*": "actor.parallel_options.*",
    f"{_ACTOR}.ulysses_sequence_parallel_size": "actor.context_parallel_size",
    f"{_ACTOR}.megatron.context_parallel_size": "actor.context_parallel_size",
    f"{_ACTOR}.megatron.tensor_model_parallel_size": "actor.tensor_parallel_size",
    f"{_ACTOR}.megatron.pipeline_model_parallel_size": "actor.pipeline_parallel_size",
    f"{_ACTOR}.megatron.expert_model_parallel_size": "actor.expert_parallel_size",
    f"{_ACTOR}.megatron.sequence_parallel": "actor.sequence_parallel",
    f"{_ACTOR}.megatron.dtype": "actor.dtype",
    f"{_ACTOR}.megatron.full_determinism": "actor.deterministic",
    f"{_ACTOR}.megatron.seed": "actor.seed",
    f"{_ACTOR}.megatron.use_remove_padding": "model.remove_padding",
    f"{_MODEL}.use_remove_padding": "model.remove_padding",
    f"{_ACTOR}.megatron.param_offload": "actor.offload.param",
    f"{_ACTOR}.megatron.optimizer_offload": "actor.offload.optimizer",
    f"{_ACTOR}.megatron.grad_offload": "actor.offload.grad",
    f"{_ACTOR}.megatron.router_replay.mode": "rollout.router_replay",
    f"{_ACTOR}.megatron.qat.*": "actor.qat.*",
    f"{_ACTOR}.megatron.override_transformer_config.recompute_*": "actor.recompute_options.*",
    f"{_ACTOR}.megatron.override_transformer_config.attention_backend": (
        "model.attention_implementation"
    ),
    f"{_ACTOR}.megatron.override_transformer_config.*": "model.override.*",
    f"{_ACTOR}.megatron.*": "actor.parallel_options.*",
    # rollout
    f"{_ROLLOUT}.name": "rollout.engine",
    f"{_ROLLOUT}.mode": "rollout.mode",
    f"{_ROLLOUT}.n": "rollout.n",
    f"{_ROLLOUT}.temperature": "rollout.temperature",
    f"{_ROLLOUT}.top_p": "rollout.top_p",
    f"{_ROLLOUT}.top_k": "rollout.top_k",
    f"{_ROLLOUT}.min_p": "rollout.min_p",
    f"{_ROLLOUT}.do_sample": "rollout.do_sample",
    f"{_ROLLOUT}.ignore_eos": "rollout.ignore_eos",
    f"{_ROLLOUT}.seed": "rollout.seed",
    f"{_ROLLOUT}.dtype": "rollout.dtype",
    f"{_ROLLOUT}.quantization": "rollout.quantization",
    f"{_ROLLOUT}.quantization_config_file": "rollout.engine_options.quantization_config_file",
    f"{_ROLLOUT}.enforce_eager": "rollout.enforce_eager",
    f"{_ROLLOUT}.enable_prefix_caching": "rollout.prefix_caching",
    f"{_ROLLOUT}.enable_chunked_prefill": "rollout.chunked_prefill",
    f"{_ROLLOUT}.max_num_seqs": "rollout.max_num_seqs",
    f"{_ROLLOUT}.max_num_batched_tokens": "rollout.max_num_batched_tokens",
    f"{_ROLLOUT}.tensor_model_parallel_size": "rollout.tensor_parallel_size",
    f"{_ROLLOUT}.pipeline_model_parallel_size": "rollout.pipeline_parallel_size",
    f"{_ROLLOUT}.data_parallel_size": "rollout.data_parallel_size",
    f"{_ROLLOUT}.expert_parallel_size": "rollout.expert_parallel_size",
    f"{_ROLLOUT}.full_determinism": "rollout.full_determinism",
    f"{_ROLLOUT}.max_model_len": "rollout.max_model_len",
    f"{_ROLLOUT}.logprobs_mode": "rollout.logprobs_mode",
    f"{_ROLLOUT}.calculate_log_probs": "rollout.calculate_log_probs",
    f"{_ROLLOUT}.enable_rollout_routing_replay": "rollout.router_replay",
    f"{_ROLLOUT}.val_kwargs.*": "rollout.val.*",
    f"{_ROLLOUT}.multi_turn.*": "rollout.multi_turn.*",
    f"{_ROLLOUT}.chat_scheduler": "rollout.agent_loop.chat_scheduler",
    f"{_ROLLOUT}.agent.num_workers": "rollout.engine_options.agent_workers",
    f"{_ROLLOUT}.agent.*": "rollout.agent_loop.*",
    f"{_ROLLOUT}.over_sample_rate": "rollout.agent_loop.over_sample_rate",
    f"{_ROLLOUT}.use_fire_sampling": "rollout.agent_loop.use_fire_sampling",
    f"{_ROLLOUT}.skip_rollout": "rollout.agent_loop.skip_rollout",
    f"{_ROLLOUT}.engine_kwargs*": "rollout.engine_options.kwargs*",
    f"{_ROLLOUT}.scheduling_policy": "rollout.engine_options.scheduling_policy",
    f"{_ROLLOUT}.cudagraph_capture_sizes": "rollout.engine_options.cudagraph_capture_sizes",
    f"{_ROLLOUT}.disaggregation.*": "rollout.engine_options.disaggregation.*",
    f"{_ROLLOUT}.router_config_path": "rollout.engine_options.router_config_path",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": "old_log_prob.micro_batch_size",
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": "old_log_prob.dynamic_batch",
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": "old_log_prob.max_tokens",
    # reference model
    f"{_REF}.log_prob_micro_batch_size_per_gpu": "ref.micro_batch_size",
    f"{_REF}.log_prob_max_token_len_per_gpu": "ref.max_tokens",
    f"{_REF}.fsdp_config.param_offload": "ref.offload",
    f"{_REF}.megatron.param_offload": "ref.offload",
    f"{_REF}.fsdp_config.mixed_precision.param_dtype": "ref.dtype",
    f"{_REF}.*": "ref.*",
    # reward and advantage
    "algorithm.adv_estimator": "advantage.estimator",
    "algorithm.norm_adv_by_std_in_grpo": "advantage.normalize_by_std",
    "algorithm.gamma": "advantage.gamma",
    "algorithm.lam": "advantage.lam",
    "algorithm.use_pf_ppo": "advantage.options.pf_ppo",
    "algorithm.pf_ppo.*": "advantage.options.pf_ppo.*",
    "algorithm.use_kl_in_reward": "reward.use_kl_in_reward",
    "algorithm.kl_penalty": "reward.kl_penalty",
    "algorithm.kl_ctrl.kl_coef": "reward.kl_coef",
    "algorithm.kl_ctrl.type": "reward.kl_control",
    "algorithm.kl_ctrl.horizon": "reward.kl_horizon",
    "algorithm.kl_ctrl.target_kl": "reward.kl_target",
    "algorithm.filter_groups.enable": "reward.filter_groups",
    "algorithm.filter_groups.metric": "reward.filter_groups_metric",
    "algorithm.filter_groups.max_num_gen_batches": "reward.filter_groups_max_batches",
    "algorithm.filter_groups.*": "reward.filter_groups_options.*",
    "algorithm.rollout_correction.*": "loss.rollout_correction.*",
    "algorithm.*": "advantage.options.*",
    "custom_reward_function.path": "reward.function",
    "reward.custom_reward_function.path": "reward.function",
    "custom_reward_function.name": "reward.function_name",
    "reward.custom_reward_function.name": "reward.function_name",
    "custom_reward_function.reward_kwargs.*": "reward.options.*",
    "reward.custom_reward_function.reward_kwargs.*": "reward.options.*",
    "reward_model.reward_manager": "reward.manager",
    "reward.reward_manager.name": "reward.manager",
    "reward_manager.name": "reward.manager",
    "reward_manager.*": "reward.options.*",
    "reward.reward_manager.*": "reward.options.*",
    "reward_model.enable": "reward.model.enable",
    "reward.reward_model.enable": "reward.model.enable",
    "reward_model.reward_loop_*": "reward.options.reward_loop_*",
    "reward_model.use_reward_loop": "reward.options.use_reward_loop",
    "reward_model.sandbox_fusion.url": "reward.options.sandbox_url",
    "reward.sandbox_fusion.url": "reward.options.sandbox_url",
    "sandbox_fusion.url": "reward.options.sandbox_url",
    **{
        f"{section}.reward_kwargs.overlong_buffer_cfg.{key}": field
        for section in ("reward_model", "reward", "reward.reward_model")
        for key, field in (
            ("enable", "reward.overlong_penalty"),
            ("len", "reward.overlong_buffer"),
            ("penalty_factor", "reward.overlong_penalty_factor"),
        )
    },
    "reward_model.reward_kwargs.max_resp_len": "reward.overlong_max_length",
    "reward.reward_kwargs.max_resp_len": "reward.overlong_max_length",
    "reward_model.reward_kwargs.*": "reward.options.*",
    "reward.reward_kwargs.*": "reward.options.*",
    "reward.reward_model.*": "reward.model.*",
    "reward_model.*": "reward.model.*",
    "distillation.enabled": "distillation.enable",
    "distillation.*": "distillation.*",
    "skip.*": "rollout.replay.*",
    # critic
    "critic.optim.lr": "critic.lr",
    "critic.cliprange_value": "critic.clip_range",
    "trainer.critic_warmup": "critic.warmup_steps",
    "critic.*": "critic.*",
    # trainer
    "trainer.nnodes": "trainer.num_nodes",
    "trainer.balance_batch": "trainer.balance_batch",
    "trainer.total_training_steps": "trainer.total_steps",
    "trainer.total_epochs": "trainer.total_epochs",
    "trainer.device": "trainer.device",
    "trainer.use_v1": "trainer.implementation",
    "trainer.use_legacy_worker_impl": "trainer.implementation",
    "trainer.v1.*": "trainer.mode.*",
    # fully asynchronous recipe
    "async_training.*": "trainer.mode.async.*",
    "rollout.*": "trainer.mode.rollout.*",
    f"{_ACTOR}.use_rollout_log_probs": "loss.options.use_rollout_log_probs",
    "trainer.resume_from_path": "trainer.resume",
    "trainer.resume_mode": "trainer.resume",
}


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
        lambda on: "length <= max_prompt_length" if str(on).lower() == "true" else "none",
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
    """Leave out keys that this version, engine or loss does not read.

    Source: `actor.grad_clip` is read by the FSDP workers up to 0.7 and by nothing from 0.8 on,
    where `optim.clip_grad` is; the vanilla loss takes clip_ratio_low and clip_ratio_high where
    they are set.
    """
    dead: dict[str, str] = {}
    strategy = values.get(f"{_ACTOR}.strategy")
    megatron = strategy is not None and strategy.value == "megatron"
    for key in values:
        if megatron and key.startswith(f"{_ACTOR}.fsdp_config."):
            dead[key] = "the engine is megatron"
        elif strategy and not megatron and key.startswith(f"{_ACTOR}.megatron."):
            dead[key] = f"the engine is {strategy.value}"
    _dead_clip_grad(values, version, dead)
    _dead_clip_ratio(values, dead)
    return ConfigView({k: v for k, v in values.items() if k not in dead}, dead)


def _dead_clip_grad(
    values: Mapping[str, ConfigValue], version: str | None, dead: dict[str, str]
) -> None:
    old, new = f"{_ACTOR}.grad_clip", f"{_ACTOR}.optim.clip_grad"
    if old in values and new in values:
        known = version_tuple(version)
        if known is not None and known < (0, 8):
            dead[new] = f"verl {version} clips by actor.grad_clip"
        else:
            dead[old] = "verl from 0.8 on clips by optim.clip_grad"


def _dead_clip_ratio(values: Mapping[str, ConfigValue], dead: dict[str, str]) -> None:
    bounds = (values.get(f"{_ACTOR}.clip_ratio_low"), values.get(f"{_ACTOR}.clip_ratio_high"))
    mode = values.get(f"{_ACTOR}.policy_loss.loss_mode")
    vanilla = mode is None or mode.value == "vanilla"
    if vanilla and all(bound is not None and bound.value is not None for bound in bounds):
        key = f"{_ACTOR}.clip_ratio"
        if key in values:
            dead[key] = "the vanilla loss takes clip_ratio_low and clip_ratio_high"


_EVERY_VERSION: dict[str, ConfigLeaf] = {
    f"{_MODEL}.override_config.attn_implementation": "flash_attention_2",
    f"{_ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "fp32",
    f"{_ACTOR}.fsdp_config.mixed_precision.buffer_dtype": "fp32",
    f"{_ACTOR}.fsdp_config.dtype": "bfloat16",
    f"{_ACTOR}.fsdp_config.model_dtype": "fp32",
    f"{_ACTOR}.optim.betas": (0.9, 0.999),
    f"{_ACTOR}.optim.override_optimizer_config.eps": 1e-8,
    f"{_ACTOR}.optim.optimizer": "AdamW",
    f"{_ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{_ACTOR}.loss_agg_mode": "token-mean",
    f"{_MODEL}.lora_rank": 0,
    f"{_MODEL}.use_liger": False,
    f"{_MODEL}.use_fused_kernels": False,
    f"{_ROLLOUT}.min_p": 0.0,
    f"{_ROLLOUT}.quantization": None,
    "algorithm.filter_groups.enable": False,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "data.train_max_samples": -1,
    "reward_model.reward_kwargs.overlong_buffer_cfg.enable": False,
}
# Of the trainers' YAML files of 0.9; for configurations that are not a whole, composed one.
_NINE: dict[str, ConfigLeaf] = {
    "data.train_batch_size": 1024,
    "data.gen_batch_size": None,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.truncation": "error",
    "data.filter_overlong_prompts": False,
    "data.shuffle": True,
    "data.seed": None,
    "data.dataloader_num_workers": 8,
    f"{_MODEL}.enable_gradient_checkpointing": True,
    f"{_ACTOR}.strategy": "fsdp",
    f"{_ACTOR}.ppo_mini_batch_size": 256,
    f"{_ACTOR}.use_dynamic_bsz": False,
    f"{_ACTOR}.ppo_max_token_len_per_gpu": 16384,
    f"{_ACTOR}.ppo_epochs": 1,
    f"{_ACTOR}.shuffle": False,
    f"{_ACTOR}.data_loader_seed": 42,
    f"{_ACTOR}.clip_ratio_low": 0.2,
    f"{_ACTOR}.clip_ratio_high": 0.2,
    f"{_ACTOR}.clip_ratio_c": 3.0,
    f"{_ACTOR}.loss_scale_factor": None,
    f"{_ACTOR}.entropy_coeff": 0,
    f"{_ACTOR}.use_kl_loss": False,
    f"{_ACTOR}.kl_loss_coef": 0.001,
    f"{_ACTOR}.kl_loss_type": "low_var_kl",
    f"{_ACTOR}.use_torch_compile": True,
    f"{_ACTOR}.ulysses_sequence_parallel_size": 1,
    f"{_ACTOR}.optim.lr": 1e-6,
    f"{_ACTOR}.optim.lr_warmup_steps": -1,
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    f"{_ACTOR}.optim.lr_scheduler_type": "constant",
    f"{_ACTOR}.optim.min_lr_ratio": 0.0,
    f"{_ACTOR}.optim.weight_decay": 0.01,
    f"{_ACTOR}.optim.clip_grad": 1.0,
    f"{_ROLLOUT}.name": "vllm",
    f"{_ROLLOUT}.n": 1,
    f"{_ROLLOUT}.temperature": 1.0,
    f"{_ROLLOUT}.top_p": 1,
    f"{_ROLLOUT}.top_k": -1,
    f"{_ROLLOUT}.seed": 42,
    f"{_ROLLOUT}.dtype": "bfloat16",
    f"{_ROLLOUT}.tensor_model_parallel_size": 2,
    f"{_ROLLOUT}.enforce_eager": False,
    f"{_ROLLOUT}.enable_prefix_caching": True,
    f"{_ROLLOUT}.enable_chunked_prefill": True,
    f"{_ROLLOUT}.logprobs_mode": "processed_logprobs",
    f"{_ROLLOUT}.val_kwargs.temperature": 0,
    f"{_ROLLOUT}.val_kwargs.do_sample": False,
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "trainer.balance_batch": True,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "trainer.total_epochs": 30,
    "trainer.total_training_steps": None,
    "trainer.critic_warmup": 0,
}


def config_defaults(
    values: Mapping[str, ConfigValue], version: str | None, whole: bool
) -> Mapping[str, Default]:
    """Return what applies where a key is not set.

    Args:
        values: keys that are set.
        version: of verl, None where the run does not state it.
        whole: the configuration at hand is a composed one, so a key it lacks does not exist.
    """
    source = f"default of verl {version or ASSUMED_VERSION}"
    defaults = {key: Default(value, source) for key, value in _EVERY_VERSION.items()}
    if whole:
        return defaults
    known = version_tuple(version)
    assumption = None if version else f"verl {ASSUMED_VERSION}: the run does not state its version"
    stated = dict(_NINE)
    stated[f"{_MODEL}.use_remove_padding"] = known is None or known >= (0, 7)
    stated[f"{_ROLLOUT}.calculate_log_probs"] = known is None or known >= (0, 9)
    if known is not None and known <= (0, 5):
        stated["data.seed"] = 1
    return defaults | {key: Default(value, source, assumption) for key, value in stated.items()}


# Keys that tell the oldest version that can have printed them.
_FIRST_SEEN = (("trainer.use_v1", "0.9"), (f"{_ROLLOUT}.logprobs_mode", "0.7"))


def config_version(values: Mapping[str, ConfigValue]) -> str | None:
    """Guess the oldest version that has these keys; a caller must state it as an assumption."""
    return next((version for key, version in _FIRST_SEEN if key in values), None)
