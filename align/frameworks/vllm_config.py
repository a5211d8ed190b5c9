"""vLLM's engine arguments, as a command, a trainer or the engine's own log states them.

The engine prints some of them under other names than its arguments have: ``max_seq_len``,
``chunked_prefill_enabled``. Sources: ``EngineArgs`` of 0.6 to 0.11 and the engines' logs.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigLeaf, ConfigValue
from align.frameworks.config_table import (
    NOT_SET,
    Default,
    Formula,
    NotSet,
    assumed_defaults,
    number,
    version_tuple,
)

READS_MODEL_CONFIG = True

CONFIG_SIGNS = ("max_num_batched_tokens", "enable_prefix_caching", "served_model_name")

CONFIG_KEYS: dict[str, str] = {
    "model": "model.name",
    "model_tag": "model.name",
    "tokenizer": "model.tokenizer",
    "dtype": "rollout.dtype",
    "seed": "rollout.seed",
    "max_model_len": "rollout.max_model_len",
    "max_seq_len": "rollout.max_model_len",
    "tensor_parallel_size": "rollout.tensor_parallel_size",
    "pipeline_parallel_size": "rollout.pipeline_parallel_size",
    "data_parallel_size": "rollout.data_parallel_size",
    "quantization": "rollout.quantization",
    "enforce_eager": "rollout.enforce_eager",
    "enable_prefix_caching": "rollout.prefix_caching",
    "enable_chunked_prefill": "rollout.chunked_prefill",
    "chunked_prefill_enabled": "rollout.chunked_prefill",
    "max_num_seqs": "rollout.max_num_seqs",
    "max_num_batched_tokens": "rollout.max_num_batched_tokens",
    "logprobs_mode": "rollout.logprobs_mode",
    # sampling, where a request names none of its own
    "override_generation_config.temperature": "rollout.temperature",
    "override_generation_config.top_p": "rollout.top_p",
    "override_generation_config.top_k": "rollout.top_k",
    "override_generation_config.min_p": "rollout.min_p",
    "override_generation_config.repetition_penalty": "rollout.repetition_penalty",
    "override_generation_config.max_new_tokens": "data.max_response_length",
    "override_generation_config.*": "rollout.engine_options.generation.*",
    "generation_config": "rollout.engine_options.generation_config",
    "default_sampling.temperature": "rollout.temperature",
    "default_sampling.top_p": "rollout.top_p",
    "default_sampling.top_k": "rollout.top_k",
    "default_sampling.min_p": "rollout.min_p",
    "default_sampling.repetition_penalty": "rollout.repetition_penalty",
    "default_sampling.max_new_tokens": "data.max_response_length",
    "default_sampling.max_tokens": "data.max_response_length",
    # what changes how logits are computed
    "additional_config.*": "rollout.engine_options.ascend.*",
    "rope_scaling*": "model.override.rope_scaling*",
    "rope_theta": "model.rope_theta",
    "hf_overrides*": "model.override.hf_overrides*",
    "compilation_config": "rollout.engine_options.compilation_level",
    "compilation_config.level": "rollout.engine_options.compilation_level",
    "compilation_config.mode": "rollout.engine_options.compilation_level",
    "compilation_config.backend": "rollout.engine_options.compilation_backend",
    "compilation_config.custom_ops": "rollout.engine_options.custom_ops",
    "compilation_config.cudagraph_mode": "rollout.engine_options.cudagraph_mode",
    "compilation_config.pass_config.*": "rollout.engine_options.passes.*",
    **{
        key: f"rollout.engine_options.{key}"
        for key in (
            *("kv_cache_dtype", "calculate_kv_scales", "block_size", "model_impl"),
            *("enable_expert_parallel", "enable_eplb", "all2all_backend", "enable_dbo"),
            *("expert_placement_strategy", "decode_context_parallel_size"),
            *("disable_custom_all_reduce", "disable_cascade_attn", "disable_sliding_window"),
            *("async_scheduling", "scheduling_policy", "num_scheduler_steps", "max_logprobs"),
            *("scheduler_delay_factor", "preemption_mode", "enable_lora", "max_lora_rank"),
            *("lora_dtype", "fully_sharded_loras", "override_attention_dtype", "moe_backend"),
            *("linear_backend", "attention_backend", "mamba_cache_dtype", "logits_processors"),
            *("logits_processor_pattern", "tokenizer_mode", "skip_tokenizer_init"),
            *(
                "quantization_param_path",
                "kv_sharing_fast_prefill",
                "prefix_caching_hash_algo",
                "max_num_partial_prefills",
            ),
            *("max_long_partial_prefills", "long_prefill_token_threshold", "reasoning_parser"),
            *("chat_template", "trust_request_chat_template", "cpu_offload_gb"),
        )
    },
    "speculative_config*": "rollout.engine_options.speculative*",
    "speculative_model": "rollout.engine_options.speculative.model",
    "num_speculative_tokens": "rollout.engine_options.speculative.num_tokens",
    "kernel_config*": "rollout.engine_options.kernels*",
    "quantization_config*": "rollout.engine_options.quantization_config*",
    "attention_config.*": "rollout.engine_options.attention.*",
    "eplb_config.*": "rollout.engine_options.eplb.*",
}

_SERVER = "address and naming of the server · 服务地址与名称"
_LOGGING = "logging and statistics · 日志与统计"
_LOADING = "how weights are loaded, not which · 权重的加载方式"
_MEMORY = "memory, not numbers · 显存占用，不影响数值"
_GRAPHS = "which graphs are captured · 捕获哪些图"
_RESOURCES = "processes and scheduling · 进程与调度"
_UNUSED = "not used for text generation by a trainer · 训练时的文本生成不使用"

CONFIG_IGNORED: dict[str, str] = {
    **dict.fromkeys(
        (
            *("host", "port", "served_model_name", "api_key", "ssl_*", "allow*", "root_path"),
            *(
                "uvicorn_log_level",
                "lora_modules*",
                "response_role",
                "chat_template_content_format",
            ),
            *("enable_auto_tool_choice", "tool_call_parser", "tool_server", "headless", "uds"),
            *("api_server_count", "enable_server_load_tracking", "middleware", "return_tokens*"),
            *("data_parallel_address", "data_parallel_rpc_port", "data_parallel_start_rank"),
            *("data_parallel_rank", "data_parallel_size_local", "data_parallel_hybrid_lb"),
            *("data_parallel_backend", "vllm_group_port", "log_level", "config"),
        ),
        _SERVER,
    ),
    **dict.fromkeys(
        (
            *("disable_log_stats", "disable_log_requests", "enable_log_requests", "max_log_len"),
            *("disable_uvicorn_access_log", "observability_config*", "otlp_traces_endpoint"),
            *("collect_detailed_traces", "show_hidden_metrics_for_version", "log_config_file"),
            *("aggregate_engine_logging", "use_tqdm_on_load", "enable_prompt_tokens_details"),
            "enable_log_outputs",
        ),
        _LOGGING,
    ),
    **dict.fromkeys(
        (
            *("load_format", "download_dir", "revision", "code_revision", "tokenizer_revision"),
            *("config_format", "hf_config_path", "ignore_patterns", "model_loader_extra_config*"),
            *("safetensors_load_strategy", "pt_load_map_location", "hf_token", "load_config*"),
            *("max_parallel_loading_workers", "trust_remote_code", "weight_transfer_config*"),
        ),
        _LOADING,
    ),
    **dict.fromkeys(
        (
            *("gpu_memory_utilization", "swap_space", "kv_cache_memory_bytes"),
            *("num_gpu_blocks_override", "enable_sleep_mode", "num_lookahead_slots"),
            *("disable_hybrid_kv_cache_manager", "max_loras", "max_cpu_loras"),
            *("lora_extra_vocab_size", "kv_transfer_config*", "kv_events_config*"),
        ),
        _MEMORY,
    ),
    **dict.fromkeys(
        (
            *("compilation_config.*", "cuda_graph_sizes", "cudagraph_capture_sizes"),
            *("max_cudagraph_capture_size", "max_seq_len_to_capture"),
        ),
        _GRAPHS,
    ),
    **dict.fromkeys(
        (
            *("distributed_executor_backend", "device", "device_config", "worker_cls"),
            *("worker_extension_cls", "scheduler_cls", "nnodes", "node_rank", "master_*"),
            *("ray_workers_use_nsight", "use_v2_block_manager", "disable_async_output_proc"),
            *(
                "dcp_comm_backend",
                "aux_output_config*",
                "enable_return_routed_experts",
                "use_async_output_proc",
                "use_cached_outputs",
                "multi_step_stream_outputs",
                "tokenizer_pool*",
                "disable_fastapi_docs",
                "dbo_*",
                "vllm_config*",
            ),
            *("disable_frontend_multiprocessing", "profiler_config*"),
        ),
        _RESOURCES,
    ),
    **dict.fromkeys(
        (
            *(
                "structured_outputs_config*",
                "decoding_config*",
                "guided_decoding_*",
                "pooler_config*",
                "task",
            ),
            *("override_pooler_config*", "override_neuron_config*", "runner", "convert"),
            *("limit_mm_per_prompt*", "mm_*", "media_io_kwargs*", "disable_mm_*", "skip_mm_*"),
            *("enable_mm_embeds", "interleave_mm_strings", "enable_prompt_embeds"),
            *("enable_prompt_adapter", "max_prompt_adapter*", "io_processor_plugin"),
            *("disable_chunked_mm_input", "video_pruning_rate", "allowed_*"),
        ),
        _UNUSED,
    ),
}


def _expert_parallel(on: ConfigLeaf, tensor: ConfigLeaf, data: ConfigLeaf) -> float | NotSet:
    a, b = number(tensor), number(data)
    if a is None or b is None:
        return NOT_SET
    return int(a * b) if str(on).lower() == "true" else 1


CONFIG_FORMULAS: tuple[Formula, ...] = (
    Formula(
        "rollout.expert_parallel_size",
        ("enable_expert_parallel", "tensor_parallel_size", "data_parallel_size"),
        _expert_parallel,
        "tensor_parallel_size × data_parallel_size where enable_expert_parallel is on",
    ),
    Formula("rollout.engine", ("model",), lambda model: "vllm", "the engine is vLLM"),
    Formula("rollout.engine", ("model_tag",), lambda model: "vllm", "the engine is vLLM"),
)

ASSUMED_VERSION = "0.11"
_DEFAULTS: dict[str, ConfigLeaf] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "enforce_eager": False,
    "quantization": None,
    "kv_cache_dtype": "auto",
    "logprobs_mode": "raw_logprobs",
    "default_sampling.temperature": 1.0,
    "default_sampling.top_p": 1.0,
    "default_sampling.top_k": -1,
    "default_sampling.min_p": 0.0,
    "default_sampling.repetition_penalty": 1.0,
}


def config_defaults(
    values: Mapping[str, ConfigValue], version: str | None
) -> Mapping[str, Default]:
    """Return what applies where an argument is not given and the engine's log does not say."""
    known = version_tuple(version)
    assumption = None if known else assumed_defaults("vLLM", ASSUMED_VERSION, version)
    source = f"default of vLLM {version or ASSUMED_VERSION}"
    found = dict(_DEFAULTS)
    if known is not None and known < (0, 10):  # the argument came with 0.10
        del found["logprobs_mode"]
    if known is None or known >= (0, 8):
        found["generation_config"] = "auto"
    return {key: Default(value, source, assumption) for key, value in found.items()}
