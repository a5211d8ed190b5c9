"""Megatron's arguments as fields of the common schema; MindSpeed-RL's actor has the same names."""

from __future__ import annotations

from align.frameworks.megatron_arguments import Argument, arguments

_SAME_NAME: dict[str, str] = {
    "num_layers": "model.num_layers",
    "hidden_size": "model.hidden_size",
    "ffn_hidden_size": "model.intermediate_size",
    "num_attention_heads": "model.num_attention_heads",
    "kv_channels": "model.head_dim",
    "norm_epsilon": "model.rms_norm_eps",
    "rotary_base": "model.rope_theta",
    "rope_scaling_type": "model.rope_scaling_type",
    "rope_scaling_factor": "model.rope_scaling_factor",
    "max_position_embeddings": "model.max_position_embeddings",
    "padded_vocab_size": "model.vocab_size",
    "add_qkv_bias": "model.qkv_bias",
    "qk_layernorm": "model.qk_norm",
    "normalization": "model.normalization",
    "position_embedding_type": "model.position_embedding",
    "num_experts": "model.num_experts",
    "moe_ffn_hidden_size": "model.moe_intermediate_size",
    "moe_intermediate_size": "model.moe_intermediate_size",
    "attention_softmax_in_fp32": "model.softmax_in_fp32",
    "use_flash_attn": "model.flash_attention",
    "use_fused_rmsnorm": "model.fused_rms_norm",
    "use_fused_swiglu": "model.fused_swiglu",
    "use_fused_rotary_pos_emb": "model.fused_rope",
    "moe_grouped_gemm": "model.grouped_gemm",
    "attention_dropout": "model.attention_dropout",
    "hidden_dropout": "model.hidden_dropout",
    "tokenizer_name_or_path": "model.name",
    "tokenizer_model": "model.tokenizer",
    "prompt_type": "data.prompt_template",
    "lora_alpha": "model.lora.alpha",
    "lora_target_modules": "model.lora.target_modules",
    "global_batch_size": "data.train_batch_size",
    "micro_batch_size": "actor.micro_batch_size",
    "seq_length": "data.sequence_length",
    "split": "data.split",
    "seed": "data.seed",
    "data_path": "data.train_files",
    "num_workers": "data.dataloader_num_workers",
    "train_iters": "trainer.total_steps",
    "lr": "actor.lr",
    "lr_decay_style": "actor.lr_schedule",
    "min_lr": "actor.min_lr",
    "weight_decay": "actor.weight_decay",
    "clip_grad": "actor.clip_grad",
    "adam_beta1": "actor.adam_beta1",
    "adam_beta2": "actor.adam_beta2",
    "adam_eps": "actor.adam_eps",
    "tensor_model_parallel_size": "actor.tensor_parallel_size",
    "pipeline_model_parallel_size": "actor.pipeline_parallel_size",
    "context_parallel_size": "actor.context_parallel_size",
    "expert_model_parallel_size": "actor.expert_parallel_size",
    "sequence_parallel": "actor.sequence_parallel",
    "npu_deterministic": "actor.deterministic",
    "use_deter_comp": "actor.deterministic",
    "deterministic_mode": "actor.deterministic",
    "swap_optimizer": "actor.offload.swap_optimizer",
    "load": "trainer.resume",
    "dpo_beta": "loss.options.dpo_beta",
    "use_distributed_optimizer": "actor.parallel_options.distributed_optimizer",
    "use_ascend_coc": "actor.parallel_options.ascend_coc",
    "num_layers_per_virtual_pipeline_stage": "actor.parallel_options.virtual_pipeline",
    "transformer_impl": "actor.precision_options.transformer_impl",
    "attention_mask_type": "model.override.attention_mask_type",
    "cp_attention_mask_type": "model.override.attention_mask_type",
    "reset_position_ids": "model.override.reset_position_ids",
    "beta_fast": "model.override.rope_beta_fast",
    "beta_slow": "model.override.rope_beta_slow",
    # names that MindSpeed-RL and MindSpeed-LLM had until core_v0.12.1
    "rope_scaling_beta_fast": "model.override.rope_beta_fast",
    "rope_scaling_beta_slow": "model.override.rope_beta_slow",
    "multi_latent_attention": "model.override.multi_latent_attention",
    "multi_head_latent_attention": "model.override.multi_latent_attention",
    "qk_pos_emb_head_dim": "model.override.qk_pos_emb_head_dim",
    "qk_rope_head_dim": "model.override.qk_pos_emb_head_dim",
    "qk_head_dim": "model.override.qk_head_dim",
    "qk_nope_head_dim": "model.override.qk_head_dim",
    "moe_router_num_groups": "model.override.moe_router_num_groups",
    "n_group": "model.override.moe_router_num_groups",
    "moe_router_group_topk": "model.override.moe_router_group_topk",
    "topk_group": "model.override.moe_router_group_topk",
    "moe_router_topk_scaling_factor": "model.override.moe_router_topk_scaling_factor",
    "routed_scaling_factor": "model.override.moe_router_topk_scaling_factor",
}

# Arguments that `megatron_formulas` turns into fields.
_IN_FORMULAS = frozenset(
    {
        "untie_embeddings_and_output_weights",
        "add_bias_linear",
        "swiglu",
        "norm_topk_prob",
        "moe_router_topk",
        "moe_router_score_function",
        "moe_aux_loss_coeff",
        "lora_r",
        "accumulate_allreduce_grads_in_fp32",
        "optimizer",
        "lr_warmup_fraction",
        "no_shuffle",
    }
)

_HARMLESS = {
    "logging": "logging · 日志",
    "profiling": "profiling and dumps · 性能分析与采集",
    "checkpoint": "checkpoints · 检查点",
    "evaluation": "evaluation and inference only · 仅评测与推理",
    "other_model": "for another kind of model · 用于其他类型的模型",
    "resources": "resources and scheduling · 资源与调度",
    "memory": "memory and communication · 内存与通信",
}

# Arguments that others make up for, or that decide fields together with others.
_DECIDES: dict[str, str] = {
    "make_vocab_size_divisible_by": "padded_vocab_size counts · 以 padded_vocab_size 为准",
    "vocab_extra_ids": "padded_vocab_size counts · 以 padded_vocab_size 为准",
    "tokenizer_type": "how the tokenizer is read · 分词器的读取方式",
    "tokenizer_not_use_fast": "same ids · 编码结果相同",
    "tokenizer_padding_side": "padding is masked · 填充会被屏蔽",
    "pad_to_multiple_of": "padding is masked · 填充会被屏蔽",
    "variable_seq_lengths": "padding is masked · 填充会被屏蔽",
    "initial_loss_scale": "with fp16 only · 仅用于 fp16",
    "shape_order": "layout of attention inputs · 注意力输入布局",
    "use_mcore_models": "always on · 始终开启",
    "deprecated_use_mcore_models": "always on · 始终开启",
    "use_rotary_position_embeddings": "position_embedding_type counts · 以其为准",
    "bf16": "decides precision fields · 决定精度字段",
    "fp16": "decides precision fields · 决定精度字段",
    "num_query_groups": "counts with group_query_attention · 与其共同生效",
    "group_query_attention": "counts with num_query_groups · 与其共同生效",
    "lora_fusion": "same formula · 公式相同",
    "refer_model_iter": "memory for speed · 以内存换速度",
    "ref_model": "path · 路径",
    "prompt_type_path": "path · 路径",
    "stage": "decides other fields · 决定其他字段",
}

ARGUMENT_IGNORED: dict[str, str] = {
    **{
        argument.name: _HARMLESS[argument.family]
        for argument in arguments().values()
        if not argument.is_field and argument.name not in _SAME_NAME
    },
    **_DECIDES,
}


def _field(argument: Argument) -> str:
    stem = (
        argument.name.removeprefix("recompute_")
        if "recompute" in argument.family
        else argument.name
    )
    return f"{argument.family}.{stem}"


ARGUMENT_KEYS: dict[str, str] = {
    **_SAME_NAME,
    **{
        argument.name: _field(argument)
        for argument in arguments().values()
        if argument.is_field
        and argument.name not in _SAME_NAME
        and argument.name not in (*ARGUMENT_IGNORED, *_IN_FORMULAS)
    },
}
