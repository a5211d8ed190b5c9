"""A rollout engine inside a trainer's run: what it says of itself counts over what was declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from align.config.comparable import equal
from align.config.merge import strongest
from align.config.model_files import GENERATION_FORMATS
from align.config.resolve import Resolution
from align.config.schema import ValueKind, field_named
from align.core.config_value import (
    ConfigValue,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
    RawConfig,
)
from align.core.text import Text
from align.frameworks.config_table import config_tables

ENGINE = "vllm"

# A trainer sends these with every request, so the engine's own do not count; it gives each replica
# of the engine a seed of its own.
_OF_THE_REQUEST = frozenset(
    f"rollout.{name}"
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
)
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


def trainers_own(configs: Sequence[RawConfig]) -> list[RawConfig]:
    """Leave out what engines state, unless a run holds nothing else."""
    return [c for c in configs if c.framework != ENGINE] or list(configs)


def with_engine(
    configs: Sequence[RawConfig], values: Mapping[str, EffectiveValue], notes: list[Text]
) -> dict[str, EffectiveValue]:
    """Return ``values`` with the rollout settings that the run's engine states of itself.

    A declared value that the engine confirms keeps its place in the run's files; one that differs
    gives way, with a note. An engine of another model, such as a judge's, is left out.
    """
    engines = [c for c in configs if c.framework == ENGINE]
    tables = config_tables(ENGINE)
    if not engines or tables is None:
        return dict(values)
    stated, said = strongest(engines)
    work = Resolution(tables, stated, {})
    work.resolve()
    if not _same_model(values, work.values):
        notes.append(_other_model(work.values["model.name"]))
        return dict(values)
    notes += [*said, *work.notes]
    merged = dict(values)
    for name, observed in work.values.items():
        if not name.startswith("rollout.") or (name in _OF_THE_REQUEST and name in values):
            continue
        declared = values.get(name)
        if declared is not None and _agree(name, declared, observed, values):
            continue
        if declared is not None and declared.value not in (None, "auto"):
            notes.append(_differs(name, declared, observed))
        merged[name] = observed
    return merged


def sampling_defaults(
    configs: Sequence[RawConfig], stated: Mapping[str, ConfigValue]
) -> dict[str, ConfigValue]:
    """Return the sampling settings an engine takes from the model where requests send none.

    vLLM reads generation_config.json unless ``--generation-config`` says otherwise; ``vllm`` means
    its own defaults, and a path another file.
    """
    source = stated.get("generation_config")
    if source is not None and source.value not in (None, "auto"):
        return {}
    found = (c.values for c in configs if c.format in GENERATION_FORMATS)
    generation = next(found, {})
    return {
        f"default_sampling.{key}": generation[key]
        for key in _SAMPLING
        if key in generation and generation[key].value is not None
    }


def _same_model(values: Mapping[str, EffectiveValue], engine: Mapping[str, EffectiveValue]) -> bool:
    sides = values.get("model.name"), engine.get("model.name")
    if sides[0] is None or sides[1] is None:
        return True
    return equal(sides[0].value, sides[1].value, ValueKind.MODEL_NAME)


def _agree(
    name: str,
    declared: EffectiveValue,
    observed: EffectiveValue,
    values: Mapping[str, EffectiveValue],
) -> bool:
    if equal(declared.value, observed.value, field_named(name).kind):
        return True
    if name != "rollout.max_model_len" or declared.value is not None:
        return False
    # Not set, it is what prompt and response need together.
    lengths = [values.get(f"data.max_{part}_length") for part in ("prompt", "response")]
    sizes = [v.value for v in lengths if v is not None and isinstance(v.value, int)]
    return len(sizes) == 2 and sum(sizes) == observed.value


def _differs(name: str, declared: EffectiveValue, observed: EffectiveValue) -> Text:
    where = f"{_place(declared.raw.provenance)}"
    return Text(
        f"{name} is {observed.value} in what the engine states "
        f"({_place(observed.raw.provenance)}), {declared.value} as declared ({where}): the "
        "engine counts",
        f"{name}：推理引擎给出 {observed.value}（{_place(observed.raw.provenance)}），"
        f"声明为 {declared.value}（{where}）：以引擎为准",
    )


def _place(provenance: Provenance) -> str:
    if provenance.kind is ProvenanceKind.DEFAULT or provenance.line is None:
        return provenance.source
    return f"{provenance.source}:{provenance.line}"


def _other_model(value: EffectiveValue) -> Text:
    place = _place(value.raw.provenance)
    return Text(
        f"{place}: an engine with another model, {value.value}, is left out",
        f"{place}：引擎加载的是另一个模型 {value.value}，未采用",
    )
