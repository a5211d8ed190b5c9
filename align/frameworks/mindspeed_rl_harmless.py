"""MindSpeed-RL keys that do not touch numbers, with the reason."""

from __future__ import annotations

from align.frameworks.megatron_keys import ARGUMENT_IGNORED

_LOGGING = "logging · 日志"
_PROFILING = "profiling and dumps · 性能分析与采集"
_CHECKPOINT = "checkpoints · 检查点"
_PATH = "path · 路径"
_RESOURCES = "resources and scheduling · 资源与调度"
_MEMORY = "memory and communication · 内存与通信"
_EVALUATION = "not used in RL training · 强化学习训练中不使用"
_DEAD = "has no effect · 不起作用"

CONFIG_IGNORED: dict[str, str] = {
    **{f"actor.{name}": why for name, why in ARGUMENT_IGNORED.items()},
    "defaults*": "names of model files · 模型文件名",
    "hydra.*": _PATH,
    "*.model": "name of the model file · 模型文件名",
    "actor.log_*": _LOGGING,
    "actor.save*": _CHECKPOINT,
    **{
        f"{role}.{keys}": _CHECKPOINT
        for role in ("critic", "ref", "reward")
        for keys in ("save*", "no_load_*", "no_save_*", "finetune")
    },
    "actor.no_load_*": _CHECKPOINT,
    "actor.no_save_*": _CHECKPOINT,
    "actor.pretrained_checkpoint": _CHECKPOINT,
    "actor.enable_high_availability": _CHECKPOINT,
    "actor.init_method_std": "weights come from a checkpoint · 权重来自检查点",
    "actor.tokenizer_type": "always Hugging Face · 始终为 Hugging Face",
    "actor.no_pad_to_seq_lengths": "padding is masked · 填充会被屏蔽",
    "actor.full_shuffle_instruction_dataset": _DEAD,
    "actor.dataset_additional_keys": "columns kept for the reward · 为奖励保留的列",
    "actor.is_instruction_dataset": "reader of the data set · 数据集读取方式",
    "actor.is_pairwise_dataset": "reader of the data set · 数据集读取方式",
    "actor.dataloader_type": "reader of the data set · 数据集读取方式",
    "actor.eval_*": _EVALUATION,
    "actor.stage": "decides other fields · 决定其他字段",
    "actor.algorithm": "decides other fields · 决定其他字段",
    "actor.ai_framework": _RESOURCES,
    "actor.mm_model": _PATH,
    "actor.attention_bias": "add_qkv_bias counts · 以 add_qkv_bias 为准",
    "actor.no_check_for_nan_in_loss_and_grad": "a check · 检查项",
    "rl_config.*_resource*": _RESOURCES,
    "rl_config.runtime_env_path": _RESOURCES,
    "rl_config.hccl_buffersize": _MEMORY,
    "rl_config.use_integrated_worker": _RESOURCES,
    "rl_config.integrated_mode_config*": _PATH,
    "rl_config.blocking": _RESOURCES,
    "rl_config.num_cpus_*": _RESOURCES,
    "rl_config.*_dispatch_size": _RESOURCES,
    "rl_config.experience_count*": _RESOURCES,
    "rl_config.data_strategy": _RESOURCES,
    "rl_config.transfer_queue_*": _RESOURCES,
    "rl_config.zmq_communication": _RESOURCES,
    "rl_config.num_samples_per_step": _RESOURCES,
    "rl_config.verifier_parallel": _RESOURCES,
    "rl_config.verifier_timeout": _RESOURCES,
    "rl_config.require_max_age_all_finished": _RESOURCES,
    "rl_config.async_engine": "decides the engine's mode · 决定引擎模式",
    "rl_config.use_tensorboard": _LOGGING,
    "rl_config.use_wandb": _LOGGING,
    "rl_config.wandb_*": _LOGGING,
    "rl_config.use_swanlab": _LOGGING,
    "rl_config.swanlab_*": _LOGGING,
    "rl_config.log_max_throughput": _LOGGING,
    "rl_config.max_packing_token_size": "copied before it is set · 在设置之前已被复制",  # from 2.2
    "rl_config.*dynamic_max_batch_size": _MEMORY,
    "rl_config.tp_split_expert": _MEMORY,
    "rl_config.is_multimodal": "multimodal only · 仅多模态",
    "rl_config.reuse_image_embeds": "multimodal only · 仅多模态",
    "rl_config.colocate_actor_and_vit": "multimodal only · 仅多模态",
    "rl_config.vit_forward_micro_batch_size": "multimodal only · 仅多模态",
    "rl_config.share_backbone": "critic only · 仅价值网络",
    "generate_config.tokenizer_name_or_path": _DEAD,
    "generate_config.trust_remote_code": _RESOURCES,
    "generate_config.gpu_memory_utilization": _MEMORY,
    "generate_config.micro_batch_size": _RESOURCES,
    "rl_config.update_micro_batch_size": _DEAD,
    "rl_config.td_status_log": _LOGGING,
    "rl_config.enable_sharding_validate": "a check · 检查项",
    "rl_config.advantage_whiten": "never read: gae always whitens · 从未读取：gae 总会白化",
    "generate_config.limit_mm_*": "multimodal only · 仅多模态",
    "generate_config.eplb_*": _PROFILING,
    "generate_config.expert_map_path": _PATH,
    "generate_config.sampling_config.logprobs": "thrown away · 结果被丢弃",
    "generate_config.sampling_config.detokenize": "text only · 仅文本",
    "datasets.output_prefix": _PATH,
    "datasets.cache_dir": _PATH,
    "datasets.script_data_dir": _PATH,
    "datasets.overwrite_cache": _RESOURCES,
    "datasets.workers": _RESOURCES,
    "datasets.n_subs": _RESOURCES,
    "datasets.streaming": _RESOURCES,
    "datasets.log_interval": _LOGGING,
    "datasets.dataset_impl": "always memory-mapped · 始终为内存映射",
    "datasets.tokenizer_type": "always Hugging Face · 始终为 Hugging Face",
    "datasets.tokenizer_not_use_fast": "same ids · 编码结果相同",
    "datasets.make_vocab_size_divisible_by": "no model is built · 不构建模型",
    "datasets.pad_vocab_size_to": "no model is built · 不构建模型",
    "profiler_config.*": _PROFILING,
    "msprobe_config.*": _PROFILING,
    "model": "names of model files · 模型文件名",
}
