"""Fields of the common schema as verl 0.9 writes them, for its FSDP and its Megatron trainer."""

from __future__ import annotations

from collections.abc import Iterator

from align.frameworks.config_table import number
from align.frameworks.config_write import Assignment, Fields, nothing_to_write

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"

CONFIG_WRITTEN_AS: dict[str, str] = {
    "model.name": f"{_MODEL}.path",
    "model.remove_padding": f"{_MODEL}.use_remove_padding",
    "actor.clip_grad": f"{_ACTOR}.optim.clip_grad",
    "reward.function": "reward.custom_reward_function.path",
    "reward.overlong_penalty": "reward.reward_kwargs.overlong_buffer_cfg.enable",
    "reward.overlong_buffer": "reward.reward_kwargs.overlong_buffer_cfg.len",
    "reward.overlong_penalty_factor": "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
    "reward.overlong_max_length": "reward.reward_kwargs.max_resp_len",
    "rollout.expert_parallel_size": f"{_ROLLOUT}.expert_parallel_size",
}
_OF_MEGATRON = {
    "actor.tensor_parallel_size": "tensor_model_parallel_size",
    "actor.pipeline_parallel_size": "pipeline_model_parallel_size",
    "actor.context_parallel_size": "context_parallel_size",
    "actor.expert_parallel_size": "expert_model_parallel_size",
    "actor.sequence_parallel": "sequence_parallel",
    "actor.deterministic": "full_determinism",
    "actor.dtype": "dtype",
    "actor.offload.param": "param_offload",
    "actor.offload.optimizer": "optimizer_offload",
    "actor.offload.grad": "grad_offload",
    "actor.parallel_options.distributed_optimizer": "use_distributed_optimizer",
}
_OF_FSDP = {
    "actor.dtype": "fsdp_config.dtype",
    "actor.master_dtype": "fsdp_config.model_dtype",
    "actor.deterministic": "fsdp_config.full_determinism",
    "actor.offload.param": "fsdp_config.param_offload",
    "actor.offload.optimizer": "fsdp_config.optimizer_offload",
    "actor.context_parallel_size": "ulysses_sequence_parallel_size",
}


def written_key(key: str, field: str) -> str:
    """Return where a user writes a key of the tables: as it is."""
    return key


def config_write(values: Fields) -> Iterator[Assignment]:
    """Yield the assignments of the fields whose form differs from the schema's."""
    megatron = values.get("actor.strategy") == "megatron"
    engine = {f: f"megatron.{key}" for f, key in _OF_MEGATRON.items()} if megatron else _OF_FSDP
    for field, key in engine.items():
        if field in values:
            yield Assignment(f"{_ACTOR}.{key}", values[field], (field,))
    yield from _optimizer(values, megatron)
    yield from _world(values)
    if values.get("data.length_filter") in ("no filter", "length <= max_prompt_length"):
        on = values["data.length_filter"] != "no filter"
        yield Assignment("data.filter_overlong_prompts", on, ("data.length_filter",))
    for field in ("data.seed", "data.gen_batch_size"):
        if field in values:
            yield Assignment(field, values[field], (field,))
    yield nothing_to_write("critic.used", "ref.used", "trainer.device", "trainer.resume")
    yield nothing_to_write(*(_OF_FSDP_ALONE if megatron else _OF_MEGATRON_ALONE))
    yield nothing_to_write(*(f for f in values if f.startswith("model.") and f not in _TRAINED))
    if values.get("loss.dual_clip") == "none":
        yield nothing_to_write("loss.dual_clip")
    if isinstance(values.get("reward.function"), tuple):  # rules by name; verl takes a file
        yield nothing_to_write("reward.function", "reward.function_weights")


_TRAINED = ("model.name", "model.remove_padding", "model.lora_rank", "model.tokenizer")
_OF_FSDP_ALONE = (
    "actor.master_dtype",
    "actor.reduce_dtype",
    "actor.buffer_dtype",
    "actor.fsdp_size",
    "actor.offload.policy",
)
_OF_MEGATRON_ALONE = tuple(_OF_MEGATRON.keys() - {*_OF_FSDP})


def _optimizer(values: Fields, megatron: bool) -> Iterator[Assignment]:
    optim = f"{_ACTOR}.optim"
    if values.get("actor.optimizer") == "adamw":
        name = "adam" if megatron else "AdamW"
        yield Assignment(f"{optim}.optimizer", name, ("actor.optimizer",))
    betas = ("actor.adam_beta1", "actor.adam_beta2")
    if all(name in values for name in betas):
        yield Assignment(f"{optim}.betas", tuple(values[name] for name in betas), betas)
    if "actor.lr_schedule" in values:
        key = "lr_decay_style" if megatron else "lr_scheduler_type"
        yield Assignment(f"{optim}.{key}", values["actor.lr_schedule"], ("actor.lr_schedule",))
    if "actor.lr_warmup_steps" in values:
        steps = values["actor.lr_warmup_steps"]
        yield Assignment(f"{optim}.lr_warmup_steps", steps, ("actor.lr_warmup_steps",))
    elif "actor.lr_warmup_fraction" in values:
        part = values["actor.lr_warmup_fraction"]
        yield Assignment(f"{optim}.lr_warmup_steps_ratio", part, ("actor.lr_warmup_fraction",))
    lowest, peak = number(values.get("actor.min_lr")), number(values.get("actor.lr"))
    if lowest is not None and megatron:
        yield Assignment(f"{optim}.min_lr", lowest, ("actor.min_lr",))
    elif lowest is not None and peak:
        yield Assignment(f"{optim}.min_lr_ratio", lowest / peak, ("actor.min_lr",))


def _world(values: Fields) -> Iterator[Assignment]:
    size, nodes = number(values.get("trainer.world_size")), number(values.get("trainer.num_nodes"))
    if size is None:
        return
    count = nodes if nodes and (size / nodes).is_integer() else max(1, size // 8)
    if not (size / count).is_integer():
        count = 1
    fields = ("trainer.world_size", "trainer.num_nodes")
    yield Assignment("trainer.nnodes", int(count), fields)
    yield Assignment("trainer.n_gpus_per_node", int(size / count), fields)
