"""Sizes that must divide each other, checked on one configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from align.config.derive.batches import data_parallel_size
from align.config.derive.quantity import Values, number, numbers, value_of
from align.core.text import Text


@dataclass(frozen=True, slots=True)
class Problem:
    """Two sizes that do not divide.

    Args:
        field: of the common schema, the one to change.
        text: what does not divide, with the numbers.
        fix: what to set instead.
        stops: whether a framework refuses it; it goes on with other rows otherwise.
    """

    field: str
    text: Text
    fix: Text
    stops: bool = True


@dataclass(frozen=True, slots=True)
class _Rule:
    """A product of fields that another product must divide.

    Args:
        field: to change where it does not.
        whole, parts: the fields of both products.
        why: what goes wrong otherwise.
    """

    field: str
    whole: tuple[str, ...]
    parts: tuple[str, ...]
    why: Text


_RANKS = "derived.data_parallel_size"
_TP, _PP = "actor.tensor_parallel_size", "actor.pipeline_parallel_size"
_CP, _EP = "actor.context_parallel_size", "actor.expert_parallel_size"
_ENGINE_TP = "rollout.tensor_parallel_size"
_N, _BATCH, _MINI = "rollout.n", "data.train_batch_size", "actor.mini_batch_size"
_HEADS, _KV_HEADS = "model.num_attention_heads", "model.num_key_value_heads"

_STOPS = Text("the run stops with an error", "程序报错退出")
_REFUSES = Text("the model cannot be split", "模型无法切分")

_ALWAYS = (
    _Rule(_MINI, (_MINI, _N), (_RANKS,), _STOPS),
    _Rule(
        _BATCH,
        (_BATCH,),
        (_MINI,),
        Text(
            "a smaller mini-batch is left, which is dropped, weighs more or stops the run",
            "剩余的较小 mini-batch 会被丢弃、权重偏大或导致报错退出",
        ),
    ),
    _Rule("trainer.world_size", ("trainer.world_size",), (_ENGINE_TP,), _STOPS),
    _Rule(_ENGINE_TP, (_HEADS,), (_ENGINE_TP,), _REFUSES),
)
_FSDP = (
    _Rule("trainer.world_size", ("trainer.world_size",), (_CP,), _STOPS),
    _Rule(_BATCH, (_BATCH, _N), ("trainer.world_size",), _STOPS),
    _Rule(
        _CP,
        (_HEADS,),
        (_CP,),
        Text("Ulysses cannot split the heads", "Ulysses 无法切分注意力头"),
    ),
)
_MEGATRON = (
    _Rule("trainer.world_size", ("trainer.world_size",), (_TP, _PP, _CP), _STOPS),
    _Rule(_BATCH, (_BATCH, _N), (_RANKS,), _STOPS),
    _Rule(_TP, (_HEADS,), (_TP,), _REFUSES),
    _Rule(_TP, (_KV_HEADS,), (_TP,), _REFUSES),
    _Rule(_EP, ("model.num_experts",), (_EP,), _REFUSES),
)
_MINDSPEED_RL = (_Rule(_BATCH, (_BATCH,), (_RANKS,), _STOPS),)
_MICRO = (_Rule("actor.micro_batch_size", (_MINI, _N), (_RANKS, "actor.micro_batch_size"), _STOPS),)
_UNEVEN_LAYERS = tuple(
    f"actor.parallel_options.{name}"
    for name in ("num_layer_list", "noop_layers", "num_layers_in_", "account_for_")
)


def divisibility(values: Values, framework: str | None = None) -> list[Problem]:
    """Return what does not divide; sizes that are not known are left alone.

    Args:
        values: effective values, fields of the common schema.
        framework: MindSpeed-RL also wants whole prompts on every rank.

    Source: verl `validate_config`, MindSpeed-RL `validate_rl_args`, megatron-core
    `TransformerConfig.__post_init__`; vLLM refuses heads that its tensor parallel size does not
    divide.
    """
    ranks = data_parallel_size(values)
    known = {**values, ranks.field: ranks} if ranks is not None else values
    megatron = value_of(values, "actor.strategy") == "megatron"
    rules = [*_ALWAYS, *(_MEGATRON if megatron else _FSDP)]
    if framework == "mindspeed_rl":
        rules += _MINDSPEED_RL
    if not value_of(values, "actor.dynamic_batch"):
        rules += _MICRO
    found = [problem for rule in rules if (problem := _broken(known, rule)) is not None]
    if megatron:
        found += [p for p in (_layers(values), _ring(values)) if p is not None]
    return found


def _broken(values: Values, rule: _Rule) -> Problem | None:
    whole, parts = numbers(values, rule.whole), numbers(values, rule.parts)
    if whole is None or parts is None or min(*whole, *parts, 1) <= 0:
        return None
    product, divisor = math.prod(whole), math.prod(parts)
    if not float(divisor).is_integer() or product % divisor == 0:
        return None
    dividend = _shown(values, rule.whole, product)
    by = _shown(values, rule.parts, divisor)
    return Problem(
        rule.field,
        Text(
            f"{dividend} is not divisible by {by}: {rule.why.en}",
            f"{dividend} 不能被 {by} 整除：{rule.why.zh}",
        ),
        _fix(values, rule, product, divisor),
        rule.why in (_STOPS, _REFUSES),
    )


def _shown(values: Values, names: tuple[str, ...], product: float) -> str:
    factors = " × ".join(f"{_key(values, name)} {number(values, name):g}" for name in names)
    return factors if len(names) == 1 else f"{factors} = {product:g}"


def _key(values: Values, name: str) -> str:
    """Return the user's own key of a field, or the quantity's name where it has several."""
    key = values[name].raw.key
    return name.rpartition(".")[2] if ", " in key else key


def _fix(values: Values, rule: _Rule, product: float, divisor: float) -> Text:
    key = _key(values, rule.field)
    if rule.field not in rule.whole:
        return Text(f"Choose {key} so that it divides.", f"选择能整除的 {key}。")
    others = product / float(number(values, rule.field) or 1)
    unit = divisor / math.gcd(int(divisor), int(others))
    return Text(f"Set {key} to a multiple of {unit:g}.", f"将 {key} 设为 {unit:g} 的倍数。")


def _layers(values: Values) -> Problem | None:
    """Check the layers of a pipeline stage, unless they are given out by hand."""
    if any(name.startswith(_UNEVEN_LAYERS) and value.value for name, value in values.items()):
        return None
    return _broken(values, _Rule(_PP, ("model.num_layers",), (_PP,), _REFUSES))


def _ring(values: Values) -> Problem | None:
    """Check that ring attention can cut a padded sequence into two pieces a rank.

    Packed sequences are padded to a multiple; Ulysses cuts heads.
    """
    size = number(values, _CP)
    algorithm = str(value_of(values, "actor.parallel_options.context_parallel_algo") or "")
    if not size or size <= 1 or "ulysses" in algorithm or value_of(values, "model.remove_padding"):
        return None
    lengths = numbers(values, ("data.max_prompt_length", "data.max_response_length"))
    if lengths is None or sum(lengths) % (2 * size) == 0:
        return None
    total, key = sum(lengths), _key(values, "data.max_response_length")
    return Problem(
        "data.max_response_length",
        Text(
            f"max_prompt_length + max_response_length = {total:g} is not divisible by "
            f"2 × {_key(values, _CP)} = {2 * size:g}: ring attention cannot cut the sequence",
            f"max_prompt_length + max_response_length = {total:g} 不能被 "
            f"2 × {_key(values, _CP)} = {2 * size:g} 整除：ring attention 无法切分序列",
        ),
        Text(
            f"Raise {key} by {2 * size - total % (2 * size):g}.",
            f"将 {key} 增加 {2 * size - total % (2 * size):g}。",
        ),
    )
