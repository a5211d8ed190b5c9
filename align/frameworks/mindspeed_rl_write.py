"""Fields of the common schema as MindSpeed-RL writes them; forms as in 2.3.0.

The architecture goes to the model's own file, named `MODEL` here, the optimizer and the parallel
sizes to ``actor_config``, everything else of Megatron to ``megatron_training``.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.core.config_value import ConfigLeaf
from align.frameworks.config_table import number
from align.frameworks.config_write import Assignment, Fields, nothing_to_write

MODEL = "translated"

_ACTOR_SECTION = frozenset(
    {
        "micro_batch_size",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "expert_model_parallel_size",
        "context_parallel_size",
        "lr",
        "lr_decay_style",
        "min_lr",
        "weight_decay",
        "lr_warmup_fraction",
        "clip_grad",
        "adam_beta1",
        "adam_beta2",
    }
)
_ESTIMATORS = {"grpo": "group_norm", "gae": "gae"}
_SAMPLING = "generate_config.sampling_config"

CONFIG_WRITTEN_AS: dict[str, str] = {
    "data.max_response_length": f"{_SAMPLING}.max_tokens",
    "old_log_prob.micro_batch_size": "rl_config.actor_forward_micro_batch_size",
}


def written_key(key: str, field: str) -> str:
    """Return where a user writes a key of the tables, given the field it carries."""
    role, _, name = key.partition(".")
    if role != "actor":
        return key
    trained = field in ("model.name", "model.remove_padding", "model.lora_rank")
    if field.startswith("model.") and "dropout" not in field and not trained:
        return f"model.{MODEL}.{name}"
    return f"{'actor_config' if name in _ACTOR_SECTION else 'megatron_training'}.{name}"


def config_write(values: Fields) -> Iterator[Assignment]:
    """Yield the assignments of the fields whose form differs from the schema's."""
    stage = _stage(values)
    if "model.hidden_size" in values:  # else the user names MindSpeed-RL's own file of the model
        yield Assignment("megatron_training.model", MODEL, ())
    yield Assignment("megatron_training.stage", stage, ("loss.use_kl", "loss.mode", "ref.used"))
    yield from _model(values)
    yield from _optimizer(values)
    yield from _batches(values)
    yield from _objective(values, stage)
    yield nothing_to_write("actor.strategy", "rollout.engine", "trainer.device", "actor.adam_eps")
    yield nothing_to_write("actor.master_dtype", "actor.reduce_dtype", "critic.used")
    yield nothing_to_write("trainer.resume")
    if isinstance(values.get("reward.function"), str):  # a file; MindSpeed-RL takes rules by name
        yield nothing_to_write("reward.function")


def _stage(values: Fields) -> str:
    """Return the trainer: PPO with a critic, DAPO with its clip, filter or loss, else GRPO."""
    if values.get("advantage.estimator") == "gae":
        return "ray_ppo"
    low, high = values.get("loss.clip_ratio_low"), values.get("loss.clip_ratio_high")
    by_sequence = values.get("loss.aggregation") == "seq-mean-token-mean"
    is_dapo = low != high or values.get("reward.filter_groups") is True or by_sequence
    return "ray_dapo" if is_dapo or values.get("loss.use_kl") is False else "ray_grpo"


def _model(values: Fields) -> Iterator[Assignment]:
    heads, kv_heads = "model.num_attention_heads", "model.num_key_value_heads"
    if kv_heads in values:
        grouped = values[kv_heads] != values.get(heads)
        yield _in_model("group_query_attention", grouped, kv_heads)
        yield _in_model("num_query_groups", values[kv_heads] if grouped else 1, kv_heads)
    inverted = (
        ("model.tie_word_embeddings", "untie_embeddings_and_output_weights"),
        ("model.linear_bias", "disable_bias_linear"),
    )
    for field, key in inverted:
        if field in values:
            yield _in_model(key, not values[field], field)
    if values.get("model.activation") in ("silu", "gelu"):
        yield _in_model("swiglu", values["model.activation"] == "silu", "model.activation")
    if values.get("model.num_experts"):
        for field, key in (
            ("model.num_experts_per_token", "moe_router_topk"),
            ("model.norm_topk_prob", "norm_topk_prob"),
            ("model.router_score", "moe_router_score_function"),
        ):
            if field in values:
                yield _in_model(key, values[field], field)
        if "model.moe_aux_loss_coef" in values:
            coefficient = values["model.moe_aux_loss_coef"]
            kind = "aux_loss" if coefficient else "none"
            yield _in_model("moe_router_load_balancing_type", kind, "model.moe_aux_loss_coef")
            yield _in_model("moe_aux_loss_coeff", coefficient, "model.moe_aux_loss_coef")
    else:
        yield nothing_to_write("model.num_experts", "model.moe_aux_loss_coef")
    if values.get("model.normalization") == "rmsnorm":
        yield _in_model("normalization", "RMSNorm", "model.normalization")
    rank = values.get("model.lora_rank")
    if rank:
        yield Assignment("megatron_training.lora_r", rank, ("model.lora_rank",))
    elif rank is not None:
        yield nothing_to_write("model.lora_rank", "model.lora.alpha", "model.lora.target_modules")


def _optimizer(values: Fields) -> Iterator[Assignment]:
    if values.get("actor.optimizer") == "adamw":
        yield Assignment("megatron_training.optimizer", "adam", ("actor.optimizer",))
    if values.get("actor.dtype") in ("bfloat16", "float32"):
        bf16 = values["actor.dtype"] == "bfloat16"
        yield Assignment("megatron_training.bf16", bf16, ("actor.dtype",))
        if not bf16:
            key = "megatron_training.accumulate_allreduce_grads_in_fp32"
            yield Assignment(key, True, ("actor.reduce_dtype",))
    steps, total = (
        number(values.get("actor.lr_warmup_steps")),
        number(values.get("trainer.total_steps")),
    )
    if steps and total:
        fields = ("actor.lr_warmup_steps", "actor.lr_warmup_fraction")
        yield Assignment("actor_config.lr_warmup_fraction", steps / total, fields)


def _batches(values: Fields) -> Iterator[Assignment]:
    if "data.shuffle" in values:
        yield Assignment(
            "megatron_training.no_shuffle", not values["data.shuffle"], ("data.shuffle",)
        )
    lengths = ("data.max_prompt_length", "data.max_response_length")
    prompt, response = (number(values.get(name)) for name in lengths)
    if prompt is not None and response is not None:
        yield Assignment("megatron_training.seq_length", int(prompt + response), ())
        if values.get("rollout.max_model_len") is None:  # verl's engine takes the model's own limit
            yield Assignment("generate_config.max_model_len", int(prompt + response), ())
    if values.get("model.remove_padding") is True:  # refused without it, from 2.2.0 on
        yield Assignment("megatron_training.reset_attention_mask", True, ())
    if "actor.mini_batch_size" in values:
        size = values["actor.mini_batch_size"]
        yield Assignment("rl_config.mini_batch_size", size, ("actor.mini_batch_size",))
    if "rollout.mode" in values:
        is_async = values["rollout.mode"] == "async"
        yield Assignment("rl_config.async_engine", is_async, ("rollout.mode",))


def _objective(values: Fields, stage: str) -> Iterator[Assignment]:
    estimator = _ESTIMATORS.get(str(values.get("advantage.estimator")))
    if estimator is not None:
        yield Assignment("rl_config.adv_estimator", estimator, ("advantage.estimator",))
    low, high = values.get("loss.clip_ratio_low"), values.get("loss.clip_ratio_high")
    bounds = ("loss.clip_ratio_low", "loss.clip_ratio_high")
    if low is not None and low == high:
        yield Assignment("rl_config.clip_ratio", low, ("loss.clip_ratio", *bounds))
    elif low is not None and high is not None:
        yield Assignment("rl_config.clip_higher_enable", True, bounds)
        yield Assignment("rl_config.clip_ratio_low", low, bounds)
        yield Assignment("rl_config.clip_ratio_high", high, bounds)
    if stage == "ray_dapo" and "loss.aggregation" in values:
        by_token = values["loss.aggregation"] == "token-mean"
        yield Assignment("rl_config.token_level_loss", by_token, ("loss.aggregation",))
    where = {"ray_grpo": "loss", "ray_ppo": "reward"}.get(stage)
    kinds = {"loss": "loss.kl_type", "reward": "reward.kl_penalty"}
    if where is not None and f"{where}.kl_coef" in values:
        coefficient = values[f"{where}.kl_coef"]
        yield Assignment("rl_config.init_kl_coef", coefficient, (f"{where}.kl_coef",))
        kind: ConfigLeaf = values.get(kinds[where])
        if kind is not None:
            yield Assignment("rl_config.kl_penalty", kind, (kinds[where],))


def _in_model(key: str, value: ConfigLeaf, field: str) -> Assignment:
    return Assignment(f"model.{MODEL}.{key}", value, (field,))
