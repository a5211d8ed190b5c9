"""TRL and transformers keys that do not touch numbers, with the reason."""

from __future__ import annotations

_LOGGING = "logging · 日志"
_CHECKPOINT = "checkpoints · 检查点"
_PATH = "output path · 输出路径"
_RESOURCES = "resources and scheduling · 资源与调度"
_EVALUATION = "evaluation only · 仅评测"
_HUB = "upload to the hub · 上传到 Hub"
_MEMORY = "memory and weight transfer · 内存与权重传输"
_SERVER = "address of the rollout server · rollout 服务地址"
_RESULT = "computed by the trainer from other keys · 由训练器根据其他键计算"
_COLUMNS = "which columns reach the trainer · 传给训练器的数据列"

CONFIG_IGNORED: dict[str, str] = {
    **dict.fromkeys(
        (
            *("logging_*", "log_*", "report_to", "run_name", "project", "trackio_*"),
            *("disable_tqdm", "include_num_input_tokens_seen", "include_tokens_per_second"),
            *("skip_memory_metrics", "num_completions_to_print", "wandb_log_unique_prompts"),
            *("include_for_metrics", "num_sample_generations", "exp_name", "wandb_*"),
            *("generate_during_eval", "include_inputs_for_metrics", "tags*"),
        ),
        _LOGGING,
    ),
    **dict.fromkeys(
        (
            *("save_*", "enable_jit_checkpoint", "load_best_model_at_end"),
            *("metric_for_best_model", "greater_is_better", "overwrite_output_dir"),
            "restore_callback_states_from_checkpoint",
        ),
        _CHECKPOINT,
    ),
    **dict.fromkeys(("output_dir", "accelerate.main_training_function"), _PATH),
    **dict.fromkeys(("push_to_hub*", "hub_*"), _HUB),
    **dict.fromkeys(
        (
            *("eval_*", "evaluation_strategy", "per_device_eval_batch_size", "per_gpu_*"),
            *("prediction_loss_only", "batch_eval_metrics", "do_eval", "do_predict", "do_train"),
            *("bf16_full_eval", "fp16_full_eval", "num_generations_eval", "dataset_test_split"),
            "label_names",
        ),
        _EVALUATION,
    ),
    **dict.fromkeys(
        (
            *("dataset_num_proc", "dataloader_pin_memory", "dataloader_persistent_workers"),
            *("dataloader_prefetch_factor", "ddp_*", "local_rank", "_n_gpu", "no_cuda", "use_cpu"),
            *("use_mps_device", "use_ipex", "jit_mode_eval", "debug", "fsdp_min_num_params"),
            *("fsdp_transformer_layer_cls_to_wrap", "tpu_*", "mp_parameters", "ray_scope"),
            *("trust_remote_code", "past_index", "torchdynamo", "torch_compile_backend"),
            *("torch_compile_mode", "split_batches", "ds3_gather_for_generation", "fp16_backend"),
            *("fp16_opt_level", "half_precision_backend", "length_column_name", "use_cache"),
            *("deepspeed_plugin", "distributed_state", "main_process_ip", "main_process_port"),
            *("machine_rank", "rdzv_*", "node_rank", "master_addr", "master_port", "same_network"),
            *("config_file", "config", "accelerate.*", "nproc_per_node", "multi_gpu", "gpu_ids"),
            *("use_deepspeed", "deepspeed_multinode_launcher", "standalone", "cpu", "backend"),
            *("mpirun_*", "dynamo_*", "main_training_function", "module"),
        ),
        _RESOURCES,
    ),
    **dict.fromkeys(
        (
            *("torch_empty_cache_steps", "vllm_gpu_memory_utilization", "vllm_enable_sleep_mode"),
            "precompute_ref_log_probs",
            "use_logits_to_keep",
            "use_num_logits_to_keep",
        ),
        _MEMORY,
    ),
    **dict.fromkeys(("vllm_server_*", "vllm_group_port"), _SERVER),
    **dict.fromkeys(
        (
            *("world_size", "num_total_batches", "micro_batch_size", "local_batch_size"),
            *("batch_size", "local_mini_batch_size", "mini_batch_size"),
        ),
        _RESULT,
    ),
    **dict.fromkeys(
        ("remove_unused_columns", "dataset_text_field", "base_model_attribute_name"), _COLUMNS
    ),
}
