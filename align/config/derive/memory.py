"""Bytes of one step's tensors on one device: an estimate, without activations and workspaces."""

from __future__ import annotations

from dataclasses import dataclass

from align.config.derive.batches import batches
from align.config.derive.parameters import Parameters, parameters
from align.config.derive.quantity import Values, number, numbers, value_of
from align.core.text import Text

_INT64, _FLOAT32, _BFLOAT16 = 8, 4, 2
_SIZES = {"bfloat16": _BFLOAT16, "float16": _BFLOAT16, "float32": _FLOAT32}
_DISTRIBUTED = "actor.parallel_options.distributed_optimizer"


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One kind of tensor on one device.

    Args:
        num_bytes: of it.
        formula: how it was computed, with the numbers.
    """

    name: Text
    num_bytes: int
    formula: str


def memory_estimate(values: Values) -> list[MemoryItem]:
    """Estimate what is known of one device's memory; nothing is guessed of what is not known."""
    known = {**values, **batches(values)}
    return [*_batch(known), *_logits(known), *_model(known)]


def _batch(values: Values) -> list[MemoryItem]:
    """Tensors of one training step's sequences on one data parallel rank."""
    names = (
        "derived.sequences_per_iteration",
        "derived.data_parallel_size",
        "data.max_prompt_length",
        "data.max_response_length",
    )
    sizes = numbers(values, names)
    if sizes is None or sizes[1] <= 0:
        return []
    rows, prompt, response = sizes[0] / sizes[1], sizes[2], sizes[3]
    length = prompt + response
    return [
        _item(
            Text(
                "input_ids, attention_mask, position_ids", "input_ids、attention_mask、position_ids"
            ),
            rows * length * 3 * _INT64,
            f"{rows:g} rows × {length:g} tokens × 3 × 8 bytes",
        ),
        _item(
            Text("responses, response_mask", "responses、response_mask"),
            rows * response * 2 * _INT64,
            f"{rows:g} rows × {response:g} tokens × 2 × 8 bytes",
        ),
        _item(
            Text(
                "old_log_probs, ref_log_prob, token_level_rewards, advantages, returns",
                "old_log_probs、ref_log_prob、token_level_rewards、advantages、returns",
            ),
            rows * response * 5 * _FLOAT32,
            f"{rows:g} rows × {response:g} tokens × 5 × 4 bytes",
        ),
    ]


def _logits(values: Values) -> list[MemoryItem]:
    sizes = numbers(values, ("derived.tokens_per_micro_batch", "model.vocab_size"))
    if sizes is None:
        return []
    tokens, vocabulary = sizes
    split = _parallel(values, "actor.tensor_parallel_size")
    context = _parallel(values, "actor.context_parallel_size")
    return [
        _item(
            Text("logits of one micro-batch in float32", "单个 micro-batch 的 float32 logits"),
            tokens / context * vocabulary / split * _FLOAT32,
            f"{tokens:g} tokens / {context:g} (CP) × {vocabulary:g} rows / {split:g} (TP) "
            "× 4 bytes",
        )
    ]


def _model(values: Values) -> list[MemoryItem]:
    counted = parameters(values)
    if counted is None or value_of(values, "model.lora_rank"):
        return []
    if value_of(values, "actor.strategy") == "megatron":
        return _megatron(values, counted)
    return _fsdp(values, counted)


def _fsdp(values: Values, counted: Parameters) -> list[MemoryItem]:
    """FSDP shards parameters, gradients and Adam's moments alike, in the master's precision."""
    world, group = number(values, "trainer.world_size"), number(values, "actor.fsdp_size")
    size = _SIZES.get(str(value_of(values, "actor.master_dtype")))
    if not world or size is None:
        return []
    shards = group if group and group > 0 else world
    each = f"{counted.total} parameters / {shards:g} devices"
    share = counted.total / shards
    return [
        _item(Text("parameters", "参数"), share * size, f"{each} × {size} bytes"),
        _item(Text("gradients", "梯度"), share * size, f"{each} × {size} bytes"),
        _item(Text("Adam's moments", "Adam 动量"), share * 2 * size, f"{each} × 2 × {size} bytes"),
    ]


def _megatron(values: Values, counted: Parameters) -> list[MemoryItem]:
    """Megatron with bfloat16: float32 gradients, float32 master copy and moments.

    With the distributed optimizer every data parallel rank holds its share of the last two.
    """
    size = _SIZES.get(str(value_of(values, "actor.dtype")))
    ranks = number(values, "derived.data_parallel_size")
    if size is None or not ranks:
        return []
    tensor, pipeline, context, expert = (
        _parallel(values, f"actor.{name}_parallel_size")
        for name in ("tensor", "pipeline", "context", "expert")
    )
    share = (counted.total - counted.experts) / (tensor * pipeline) + counted.experts / (
        expert * tensor * pipeline
    )
    each = f"{share:.0f} parameters of this device"
    # verl always uses the distributed optimizer and has no key for it
    spread = value_of(values, _DISTRIBUTED) if _DISTRIBUTED in values else True
    copies = 3 if size < _FLOAT32 else 2
    groups = ranks * context if spread else 1.0
    return [
        _item(Text("parameters", "参数"), share * size, f"{each} × {size} bytes"),
        _item(Text("gradients in float32", "梯度（float32）"), share * 4, f"{each} × 4 bytes"),
        _item(
            Text("optimizer states", "优化器状态"),
            share * copies * _FLOAT32 / groups,
            f"{each} × {copies} × 4 bytes / {groups:g} "
            + ("(distributed optimizer)" if spread else "(no distributed optimizer)"),
        ),
    ]


def _parallel(values: Values, name: str) -> float:
    return number(values, name) or 1.0


def _item(name: Text, num_bytes: float, formula: str) -> MemoryItem:
    return MemoryItem(name, round(num_bytes), formula)
