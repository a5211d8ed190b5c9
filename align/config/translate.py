"""One run's configuration in another framework's keys, checked by reading it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from align.config.diff import compare_configs
from align.config.normalise import effective
from align.config.schema import FIELDS, field_named
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
    RawConfig,
)
from align.core.errors import ConfigError
from align.core.finding import Severity, Side, Strength
from align.core.run import RunManifest
from align.frameworks.config_table import ConfigTables, config_tables
from align.frameworks.config_write import Assignment
from align.frameworks.huggingface_write import config_json

TARGETS = ("mindspeed_rl", "verl")
VERSIONS = {"mindspeed_rl": "2.3.0", "verl": "0.9"}


@dataclass(frozen=True, slots=True)
class Written:
    """One key of the translation and the values it comes from; none where the target needs it."""

    key: str
    value: ConfigLeaf
    sources: tuple[EffectiveValue, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """A field that the target does not carry, and what it does instead, None where it knows none.

    ``matters`` says that the difference can change what is computed.
    """

    source: EffectiveValue
    instead: EffectiveValue | None
    matters: bool


@dataclass(frozen=True, slots=True)
class Translation:
    """A configuration for another framework.

    ``model`` is what the model's config.json must hold where the target reads the architecture
    from there; {} where it does not, or where the source does not tell.
    """

    source: EffectiveConfig
    target: str
    version: str
    written: tuple[Written, ...]
    model: Mapping[str, ConfigLeaf]
    left: tuple[Left, ...]


def translate(source: EffectiveConfig, target: str) -> Translation:
    """Write every field of ``source`` in the target's keys and read the result back.

    Raises:
        ConfigError: There is nothing to translate, or it is the target's already.
    """
    if target not in TARGETS:
        raise ConfigError(
            where="--to", problem=f"no translation to {target}", fix=f"use {' or '.join(TARGETS)}"
        )
    if source.framework is None or not source.values:
        raise ConfigError(
            where="configuration",
            problem="it is of no framework known here",
            fix="name the framework in the run's manifest: align run init",
        )
    if source.framework == target:
        raise ConfigError(
            where="--to", problem=f"it is a configuration of {target} already", fix="use the other"
        )
    tables = config_tables(target)
    assert tables is not None
    module = import_module(f"align.frameworks.{target}_write")
    fields = {n: v for n, v in source.values.items() if not n.startswith("derived.")}
    written = tuple(_written(fields, tables, module))
    stated = {name: value.value for name, value in fields.items()}
    model = config_json(stated) if tables.reads_model_config else {}
    back = read_back(target, written, model)
    return Translation(source, target, VERSIONS[target], written, model, tuple(_left(source, back)))


def read_back(
    target: str, written: Iterable[Written], model: Mapping[str, ConfigLeaf]
) -> EffectiveConfig:
    """Return what the translation means in the target, defaults of its version included."""
    configs = [_raw("translation", target, {w.key: w.value for w in written})]
    if model:
        configs.append(_raw("hf_config", "huggingface", model))
    manifest = RunManifest(framework=target, framework_version=VERSIONS[target])
    return effective(configs, manifest)


def _written(
    fields: Mapping[str, EffectiveValue], tables: ConfigTables, module: ModuleType
) -> Iterator[Written]:
    """Yield the target's own forms first, then every field that one key carries as it is."""
    values = {name: value.value for name, value in fields.items() if value.value is not None}
    own = list(module.config_write(values))
    taken = {name for assignment in own for name in assignment.fields}
    yield from (_from(a, a.key, fields) for a in own if a.key is not None)
    keys = _exact_keys(tables) | module.CONFIG_WRITTEN_AS
    for name in (n for n in FIELDS if n in values and n not in taken and n in keys):
        if name.startswith("critic.") and not values.get("critic.used"):
            continue
        key = module.written_key(keys[name], name)
        yield Written(key, values[name], (fields[name],))


def _from(assignment: Assignment, key: str, fields: Mapping[str, EffectiveValue]) -> Written:
    sources = tuple(fields[name] for name in assignment.fields if name in fields)
    return Written(key, assignment.value, sources)


def _exact_keys(tables: ConfigTables) -> dict[str, str]:
    """Return the first key of each field that is its alone: no family, none that is not read."""
    keys: dict[str, str] = {}
    for key, name in tables.keys.items():
        if "*" not in key:
            keys.setdefault(name, key)
    return keys


def _left(source: EffectiveConfig, back: EffectiveConfig) -> Iterator[Left]:
    """Yield what the translation does not carry, what matters first."""
    diff = compare_configs(source, back)
    left = [
        Left(
            row.reference,
            row.candidate,
            row.finding is not None and row.finding.severity is not Severity.INFO,
        )
        for row in diff.compared
        if not row.same and not row.name.startswith("derived.")
    ]
    for side, value in diff.one_sided:
        unused = value.field.startswith("critic.") and _off(source, "critic.used")
        if side is Side.REFERENCE and not value.field.startswith("derived.") and not unused:
            left.append(Left(value, None, _can_matter(value, source)))
    return iter(sorted(left, key=lambda item: (not item.matters, item.source.field)))


def _off(config: EffectiveConfig, flag: str) -> bool:
    return flag in config.values and config.values[flag].value is False


def _can_matter(value: EffectiveValue, source: EffectiveConfig) -> bool:
    """Tell whether a field the target does not know is in effect and changes what is computed."""
    known = field_named(value.field)
    flag = source.values.get(known.only_if or "")
    in_effect = value.value not in (None, False, 0, "none", ()) and (flag is None or flag.value)
    stated = value.raw.provenance.kind is not ProvenanceKind.DEFAULT
    semantic = known.strength is Strength.SEMANTIC and known.severity is not Severity.INFO
    is_member = known.name != value.field  # of a family of one framework's own options
    return bool(stated and in_effect and semantic and not is_member)


def _raw(kind: str, framework: str, values: Mapping[str, ConfigLeaf]) -> RawConfig:
    place = Provenance(ProvenanceKind.FILE, kind)
    if kind == "hf_config":
        place = Provenance(ProvenanceKind.MODEL_CONFIG, kind)
    return RawConfig(
        kind, kind, framework, {key: ConfigValue(key, v, place) for key, v in values.items()}
    )
