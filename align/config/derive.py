"""Quantities that follow from a configuration, computed the same way on both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.core.text import joined
from align.frameworks.config_table import number


@dataclass(frozen=True, slots=True)
class Derivation:
    """A quantity computed from fields that must all be known and numeric."""

    field: str
    inputs: tuple[str, ...]
    compute: Callable[..., ConfigLeaf]
    text: str


def _exact(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


DERIVATIONS: tuple[Derivation, ...] = (
    Derivation(
        "derived.sequences_per_iteration",
        ("data.train_batch_size", "rollout.n"),
        lambda prompts, n: _exact(prompts * n),
        "train_batch_size × n",
    ),
    Derivation(
        "derived.sequences_per_optimizer_step",
        ("actor.mini_batch_size", "rollout.n"),
        lambda prompts, n: _exact(prompts * n),
        "mini_batch_size × n",
    ),
    Derivation(
        "derived.optimizer_steps_per_iteration",
        ("data.train_batch_size", "actor.mini_batch_size", "actor.ppo_epochs"),
        lambda batch, mini, epochs: _exact(batch / mini * epochs) if mini else None,
        "train_batch_size / mini_batch_size × ppo_epochs",
    ),
    Derivation(
        "derived.on_policy",
        ("data.train_batch_size", "actor.mini_batch_size", "actor.ppo_epochs"),
        lambda batch, mini, epochs: batch == mini and epochs == 1,
        "train_batch_size = mini_batch_size and ppo_epochs = 1",
    ),
    Derivation(
        "derived.data_parallel_size",
        (
            "trainer.world_size",
            "actor.tensor_parallel_size",
            "actor.pipeline_parallel_size",
            "actor.context_parallel_size",
        ),
        lambda devices, tp, pp, cp: _exact(devices / (tp * pp * cp)) if tp * pp * cp else None,
        "world_size / (tensor × pipeline × context parallel size)",
    ),
)


def derive(values: Mapping[str, EffectiveValue]) -> dict[str, EffectiveValue]:
    """Compute every quantity whose inputs are all known."""
    derived = {}
    for derivation in DERIVATIONS:
        inputs = [
            number(values[name].value) if name in values else None for name in derivation.inputs
        ]
        if any(value is None for value in inputs):
            continue
        try:
            result = derivation.compute(*inputs)
        except ArithmeticError:  # NaN, infinity or a zero where a size should stand
            continue
        if result is not None:
            derived[derivation.field] = _value(derivation.field, result, derivation, values)
    limit = _length_limit(values)
    if limit is not None:
        derived[limit.field] = limit
    warmup = _warmup_steps(values)
    if warmup is not None:
        derived[warmup.field] = warmup
    mode = values.get("loss.mode")
    if mode is not None:
        made = Derivation("derived.nonstandard_loss", ("loss.mode",), bool, "mode is not vanilla")
        derived[made.field] = _value(made.field, mode.value != "vanilla", made, values)
    return derived


def _length_limit(values: Mapping[str, EffectiveValue]) -> EffectiveValue | None:
    """Return the smaller of prompt plus response and the engine's own limit, if it has one."""
    lengths = ("data.max_prompt_length", "data.max_response_length")
    parts = [number(values[name].value) if name in values else None for name in lengths]
    if any(part is None for part in parts) or "rollout.max_model_len" not in values:
        return None
    total = sum(part for part in parts if part is not None)
    engine = number(values["rollout.max_model_len"].value)
    limit = total if engine is None else min(total, engine)
    made = Derivation(
        "derived.length_limit",
        (*lengths, "rollout.max_model_len"),
        min,
        "min(max_prompt_length + max_response_length, max_model_len)",
    )
    return _value(made.field, _exact(limit), made, values)


def _warmup_steps(values: Mapping[str, EffectiveValue]) -> EffectiveValue | None:
    """Return warmup in steps: as it is set, or the fraction of the total where that is known."""
    name = "derived.warmup_steps"
    if "actor.lr_warmup_steps" in values:
        steps = values["actor.lr_warmup_steps"]
        return _value(name, steps.value, Derivation(name, (steps.field,), max, "as set"), values)
    fraction = values.get("actor.lr_warmup_fraction")
    part = number(fraction.value) if fraction else None
    if fraction is None or part is None:
        return None
    if part == 0:
        made = Derivation(name, (fraction.field,), max, "fraction 0 is no warmup")
        return _value(name, 0, made, values)
    total = number(values["trainer.total_steps"].value) if "trainer.total_steps" in values else None
    if total is None:
        return None
    made = Derivation(name, (fraction.field, "trainer.total_steps"), max, "fraction × total steps")
    warmup = part * total
    return _value(name, int(warmup), made, values) if math.isfinite(warmup) else None


def _value(
    field: str,
    result: ConfigLeaf,
    derivation: Derivation,
    values: Mapping[str, EffectiveValue],
) -> EffectiveValue:
    inputs = [values[name] for name in derivation.inputs]
    raw = ConfigValue(
        ", ".join(dict.fromkeys(value.raw.key for value in inputs)),
        tuple(value.value for value in inputs),
        Provenance(ProvenanceKind.DERIVED, derivation.text),
    )
    assumptions = dict.fromkeys(v.assumption for v in inputs if v.assumption)
    return EffectiveValue(field, result, raw, joined(assumptions) if assumptions else None)
