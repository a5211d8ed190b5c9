"""From what files state to what a run really does: one value a field, with where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from align.config.derive import derive
from align.config.engine import ENGINE, sampling_defaults, trainers_own, with_engine
from align.config.keys import matches
from align.config.merge import strongest, undetermined
from align.config.model_files import GENERATION_FORMATS, MODEL_FORMATS, model_files
from align.config.resolve import Resolution
from align.config.versions import (
    contradiction,
    mark_version_dependent,
    possible_versions,
    resolve_as,
)
from align.core.config_value import ConfigValue, EffectiveConfig, EffectiveValue, RawConfig
from align.core.run import RunManifest
from align.core.text import Text
from align.frameworks.config_table import ConfigTables, config_tables
from align.frameworks.registry import frameworks

_READ_BY_EVERY_ENGINE = ("model.eos_token_id", "model.pad_token_id")  # also where a YAML is trained


def effective(
    raw_configs: Sequence[RawConfig], manifest: RunManifest, *, rows: int | None = None
) -> EffectiveConfig:
    """Resolve everything a run's configuration files state.

    Args:
        raw_configs: in path order; of two values of one key the stronger provenance counts, and
            of two equally strong ones the first, with a note.
        manifest: states framework and version where it knows them.
        rows: of the training data after the length filter; None where they are not counted.

    Returns:
        One value for each field that can be known. What cannot is absent, never guessed.
    """
    training = trainers_own([c for c in raw_configs if is_training_config(c)])
    name = manifest.framework or _framework(training)
    tables = config_tables(name)
    if tables is None:
        return _unknown_framework(name, training, raw_configs)
    stated, notes = strongest(c for c in training if c.framework in (name, None))
    if name == ENGINE:
        stated = sampling_defaults(raw_configs, stated) | stated
    version, others, assumption = _version(tables, stated, manifest)
    if version is not None and assumption is None:
        doubt = contradiction(tables, stated, version)
        notes += [doubt] if doubt else []
    truncated = [c for c in training if c.truncated_at]
    notes += [_ends_at(c.source, c.truncated_at) for c in truncated if c.truncated_at]
    unknown, whole = undetermined(training), bool(stated) and not truncated

    def resolved(version: str | None) -> tuple[Resolution, Mapping[str, Text]]:
        return resolve_as(tables, stated, version, unknown, with_defaults=whole)

    work, dead = resolved(version)
    values = work.values
    if assumption is not None:
        different = [resolved(other)[0].values for other in others]
        values = mark_version_dependent(values, different, assumption)
    files = model_files(raw_configs)
    notes += files.notes
    model = dict(files.values)
    if not tables.reads_model_config:
        model = {name: value for name, value in model.items() if name in _READ_BY_EVERY_ENGINE}
    values = model | values
    if name != ENGINE:
        values = with_engine(raw_configs, values, notes)
    return EffectiveConfig(
        framework=name,
        framework_version=version,
        values=values | derive(values, name, rows=rows),
        unmatched=(*work.unmatched, *files.unmatched),
        ignored=work.ignored | dict(dead),
        notes=tuple(dict.fromkeys([*notes, *work.notes, *([assumption] if assumption else [])])),
    )


def model_values(raw_configs: Sequence[RawConfig]) -> dict[str, EffectiveValue]:
    """Return the fields of config.json, which every rollout engine reads."""
    return dict(model_files(raw_configs).values)


def is_training_config(config: RawConfig) -> bool:
    """Tell a framework's configuration from a model's own files."""
    return config.format not in (*MODEL_FORMATS, *GENERATION_FORMATS)


def _framework(configs: Iterable[RawConfig]) -> str | None:
    """Name the framework the readers saw, else the one with the most of its own keys."""
    configs = list(configs)
    seen = next((c.framework for c in configs if c.framework), None)
    if seen:
        return seen
    keys = [key for config in configs for key in config.values]
    counts = [
        (sum(matches(sign, key) for sign in tables.signs for key in keys), name)
        for name, tables in ((name, config_tables(name)) for name in frameworks())
        if tables is not None
    ]
    best = max(counts, default=(0, None))
    return best[1] if best[0] else None


def _version(
    tables: ConfigTables, stated: Mapping[str, ConfigValue], manifest: RunManifest
) -> tuple[str | None, tuple[str, ...], Text | None]:
    """Return the version, the others it may be, and what is assumed."""
    if manifest.framework_version:
        return manifest.framework_version, (), None
    versions, assumption = possible_versions(tables, stated)
    return next(iter(versions), None), versions[1:], assumption


def _ends_at(source: str, key: str) -> Text:
    return Text(f"{source}: ends at key {key}", f"{source}：到键 {key} 为止")


def _unknown_framework(
    name: str | None, training: Sequence[RawConfig], configs: Sequence[RawConfig]
) -> EffectiveConfig:
    """Keep what config.json says; every other key stays unmatched."""
    files = model_files(configs)
    stated, notes = strongest(training)
    strange = (*stated.values(), *files.unmatched)
    return EffectiveConfig(name, None, files.values, strange, {}, (*notes, *files.notes))
