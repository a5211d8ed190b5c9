"""How one batch of prompts is split into updates, ranks and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from align.config.derive.quantity import Values, derived, exact, number, numbers, value_of
from align.core.config_value import ConfigLeaf, EffectiveValue

_LENGTHS = ("data.max_prompt_length", "data.max_response_length")
_ONE_SHARD = ("fsdp", "fsdp2")  # engines without tensor and pipeline parallelism
_SHARDS = (
    "actor.tensor_parallel_size",
    "actor.pipeline_parallel_size",
    "actor.context_parallel_size",
)


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A quantity computed from fields that must all be known and numeric."""

    field: str
    inputs: tuple[str, ...]
    compute: Callable[..., ConfigLeaf]
    formula: str


_QUANTITIES: tuple[_Quantity, ...] = (
    _Quantity(
        "derived.sequences_per_iteration",
        ("data.train_batch_size", "rollout.n"),
        lambda prompts, n: exact(prompts * n),
        "train_batch_size × n",
    ),
    _Quantity(
        "derived.sequences_per_optimizer_step",
        ("actor.mini_batch_size", "rollout.n"),
        lambda prompts, n: exact(prompts * n),
        "mini_batch_size × n",
    ),
    _Quantity(
        "derived.optimizer_steps_per_iteration",
        ("data.train_batch_size", "actor.mini_batch_size", "actor.ppo_epochs"),
        lambda batch, mini, epochs: exact(batch / mini * epochs) if mini else None,
        "train_batch_size / mini_batch_size × ppo_epochs",
    ),
    _Quantity(
        "derived.on_policy",
        ("data.train_batch_size", "actor.mini_batch_size", "actor.ppo_epochs"),
        lambda batch, mini, epochs: batch == mini and epochs == 1,
        "train_batch_size = mini_batch_size and ppo_epochs = 1",
    ),
    _Quantity(
        "derived.sequences_per_rank",
        ("derived.sequences_per_optimizer_step", "derived.data_parallel_size"),
        lambda sequences, ranks: exact(sequences / ranks) if ranks else None,
        "mini_batch_size × n / data parallel size",
    ),
    _Quantity(
        "derived.tokens_per_rank",
        ("derived.sequences_per_rank", *_LENGTHS),
        lambda sequences, prompt, response: exact(sequences * (prompt + response)),
        "sequences per rank × (max_prompt_length + max_response_length), at most",
    ),
    _Quantity(
        "derived.rollout_sequences_per_engine",
        ("derived.sequences_per_iteration", "trainer.world_size", "rollout.tensor_parallel_size"),
        lambda sequences, world, tp: exact(sequences * tp / world) if world else None,
        "train_batch_size × n / (world_size / tensor parallel size of the engine)",
    ),
)


def batches(values: Values) -> dict[str, EffectiveValue]:
    """Compute the sizes whose inputs are known."""
    ranks = data_parallel_size(values)
    made = {} if ranks is None else {ranks.field: ranks}
    for quantity in _QUANTITIES:
        inputs = numbers({**values, **made}, quantity.inputs)
        if inputs is None:
            continue
        try:
            result = quantity.compute(*inputs)
        except ArithmeticError:  # an infinity or a zero where a size should stand
            continue
        if result is not None:
            made[quantity.field] = derived(
                quantity.field, result, quantity.inputs, quantity.formula, {**values, **made}
            )
    for extra in (_micro_batches({**values, **made}), _tokens_per_micro_batch(values)):
        if extra is not None:
            made[extra.field] = extra
    return made


def data_parallel_size(values: Values) -> EffectiveValue | None:
    """Return the number of ranks that hold other sequences; FSDP has Ulysses alone."""
    shards: tuple[str, ...] = _SHARDS
    if value_of(values, "actor.strategy") in _ONE_SHARD:
        shards = tuple(name for name in _SHARDS if name in values)
    inputs = ("trainer.world_size", *shards)
    sizes = numbers(values, inputs)
    if sizes is None or not all(sizes):
        return None
    world, *parts = sizes
    return derived(
        "derived.data_parallel_size",
        exact(world / math.prod(parts)),
        inputs,
        "world_size / (tensor × pipeline × context parallel size)",
        values,
    )


def _micro_batches(values: Values) -> EffectiveValue | None:
    """Return the micro-batches whose gradients are summed; unknown where tokens cut them."""
    inputs = ("derived.sequences_per_rank", "actor.micro_batch_size")
    sizes = numbers(values, inputs)
    if value_of(values, "actor.dynamic_batch") or sizes is None or min(sizes) <= 0:
        return None
    return derived(
        "derived.micro_batches",
        math.ceil(sizes[0] / sizes[1]),
        (*inputs, "actor.dynamic_batch"),
        "sequences per rank / micro_batch_size, rounded up",
        values,
    )


def _tokens_per_micro_batch(values: Values) -> EffectiveValue | None:
    """Return the most tokens of one micro-batch: the budget where there is one.

    The budget of verl is per device, and Ulysses puts a sequence on several of them.
    """
    field = "derived.tokens_per_micro_batch"
    if value_of(values, "actor.dynamic_batch"):
        inputs: tuple[str, ...] = ("actor.max_tokens_per_micro_batch",)
        budget = number(values, inputs[0])
        formula = "the budget"
        fsdp = value_of(values, "actor.strategy") in _ONE_SHARD
        ulysses = number(values, "actor.context_parallel_size") if fsdp else None
        if budget is not None and ulysses is not None:
            inputs, formula = (*inputs, "actor.context_parallel_size"), "the budget × Ulysses size"
            budget *= ulysses
        return None if not budget else derived(field, exact(budget), inputs, formula, values)
    inputs = ("actor.micro_batch_size", *_LENGTHS)
    sizes = numbers(values, inputs)
    if sizes is None:
        return None
    formula = "micro_batch_size × (max_prompt_length + max_response_length), at most"
    return derived(field, exact(sizes[0] * (sizes[1] + sizes[2])), inputs, formula, values)
