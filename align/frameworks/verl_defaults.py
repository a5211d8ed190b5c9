"""Values of verl configuration keys that are not set."""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue
from align.frameworks.config_table import Default, assumed_defaults, version_tuple

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"

ASSUMED_VERSION = "0.9"

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


# A configuration with these keys is a composed one: a key it lacks does not exist in its version.
_WHOLE = (
    "data.train_batch_size",
    f"{_ACTOR}.optim.lr",
    f"{_ROLLOUT}.temperature",
    "algorithm.adv_estimator",
)


def config_defaults(
    values: Mapping[str, ConfigValue], version: str | None
) -> Mapping[str, Default]:
    """Return what applies where a key is not set.

    Args:
        values: keys that are set.
        version: of verl, None where the run does not state it.
    """
    source = f"default of verl {version or ASSUMED_VERSION}"
    defaults = {key: Default(value, source) for key, value in _EVERY_VERSION.items()}
    strategy = values.get(f"{_ACTOR}.strategy")
    if strategy is not None and strategy.value == "megatron":
        del defaults[f"{_MODEL}.override_config.attn_implementation"]
    if all(key in values for key in _WHOLE):
        return defaults
    known = version_tuple(version)
    nine = f"default of verl {version if known == (0, 9) else ASSUMED_VERSION}"
    assumption = None if known == (0, 9) else assumed_defaults("verl", ASSUMED_VERSION, version)
    defaults |= {key: Default(value, nine, assumption) for key, value in _NINE.items()}
    by_version: dict[str, ConfigLeaf] = {
        f"{_MODEL}.use_remove_padding": known is None or known >= (0, 7),
        f"{_ROLLOUT}.calculate_log_probs": known is None or known >= (0, 9),
        # 0.6.0 still reads get("seed", 1); null begins at 0.6.1
        "data.seed": 1 if known is not None and (known <= (0, 5) or version == "0.6.0") else None,
    }
    unsure = assumption if known is None else None
    return defaults | {key: Default(value, source, unsure) for key, value in by_version.items()}
