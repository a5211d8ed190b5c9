"""From what files state to what a run really does: one value a field, with where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from align.config.derive import derive
from align.config.keys import matches
from align.config.merge import strongest, undetermined
from align.config.resolve import Resolution
from align.core.config_value import ConfigValue, EffectiveConfig, EffectiveValue, RawConfig
from align.core.run import RunManifest
from align.core.text import Text
from align.frameworks.config_table import ConfigTables, config_tables
from align.frameworks.registry import frameworks

_MODEL_FORMATS = ("hf_config",)
_OTHER_FORMATS = ("hf_generation_config",)


def effective(raw_configs: Sequence[RawConfig], manifest: RunManifest) -> EffectiveConfig:
    """Resolve everything a run's configuration files state.

    Args:
        raw_configs: in path order; of two values of one key the stronger provenance counts, and
            of two equally strong ones the first, with a note.
        manifest: states framework and version where it knows them.

    Returns:
        One value for each field that can be known. What cannot is absent, never guessed.
    """
    training = [c for c in raw_configs if c.format not in (*_MODEL_FORMATS, *_OTHER_FORMATS)]
    name = manifest.framework or _framework(training)
    tables = config_tables(name)
    if tables is None:
        return _unknown_framework(name, training, raw_configs)
    stated, notes = strongest(c for c in training if c.framework in (name, None))
    version, assumption = _version(tables, stated, manifest)
    truncated = [c for c in training if c.truncated_at]
    notes += [_ends_at(c.source, c.truncated_at) for c in truncated if c.truncated_at]
    view = tables.view(stated, version)
    defaults = {} if truncated or not stated else tables.defaults(view.values, version)
    for key in undetermined(training):
        defaults = {k: v for k, v in defaults.items() if k != key and not k.startswith(f"{key}.")}
    work = Resolution(tables, view.values, defaults)
    work.resolve()
    values = work.values
    if tables.reads_model_config:
        values = _model_fields(raw_configs, notes) | values
    return EffectiveConfig(
        framework=name,
        framework_version=version,
        values=values | derive(values),
        unmatched=tuple(work.unmatched),
        ignored=work.ignored | dict(view.dead),
        notes=tuple(dict.fromkeys([*notes, *work.notes, *([assumption] if assumption else [])])),
    )


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
) -> tuple[str | None, Text | None]:
    if manifest.framework_version:
        return manifest.framework_version, None
    guess = tables.version(stated)
    if guess is None:
        return None, None
    return guess, Text(
        f"version {guess} or later is assumed from the keys: the run does not state it",
        f"根据已有的键假定版本为 {guess} 或更高：该次运行未说明版本",
    )


def _ends_at(source: str, key: str) -> Text:
    return Text(f"{source}: ends at key {key}", f"{source}：到键 {key} 为止")


def _model_fields(configs: Sequence[RawConfig], notes: list[Text]) -> dict[str, EffectiveValue]:
    """Take the architecture from config.json; two different ones are not told apart."""
    tables = config_tables("huggingface")
    models = [c for c in configs if c.format in _MODEL_FORMATS]
    if not models or tables is None:
        return {}
    leaves = {tuple(sorted((k, repr(v.value)) for k, v in c.values.items())) for c in models}
    if len(leaves) > 1:
        names = ", ".join(c.source for c in models)
        notes.append(
            Text(
                f"several different config.json files, none is used: {names}",
                f"有多个不同的 config.json，均未采用：{names}",
            )
        )
        return {}
    work = Resolution(tables, models[0].values, {})
    work.resolve()
    return work.values


def _unknown_framework(
    name: str | None, training: Sequence[RawConfig], configs: Sequence[RawConfig]
) -> EffectiveConfig:
    """Keep what config.json says; every other key stays unmatched."""
    notes: list[Text] = []
    values = _model_fields(configs, notes)
    stated, merge_notes = strongest(training)
    return EffectiveConfig(name, None, values, tuple(stated.values()), {}, (*merge_notes, *notes))
