"""From what files state to what a run really does: one value a field, with where it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache

from align.config.comparable import canonical
from align.config.derive import derive
from align.config.schema import field_named
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
    RawConfig,
)
from align.core.run import RunManifest
from align.frameworks.config_table import NOT_SET, ConfigTables, Default, Formula, config_tables
from align.frameworks.registry import frameworks

_ORDER = list(ProvenanceKind)
_WHOLE = (
    "data.train_batch_size",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.rollout.temperature",
    "algorithm.adv_estimator",
)
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
    notes += [f"{c.source}: ends at key {c.truncated_at}" for c in truncated]
    view = tables.view(stated, version)
    whole = all(key in stated for key in _WHOLE)
    defaults = {} if truncated else tables.defaults(view.values, version, whole)
    work = _Work(tables, view.values, defaults, version, assumption)
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
        notes=tuple(dict.fromkeys([*notes, *([assumption] if assumption else [])])),
    )


def _framework(configs: Iterable[RawConfig]) -> str | None:
    """Name the framework the readers saw, else the one with the most of its own keys."""
    configs = list(configs)
    seen = next((c.framework for c in configs if c.framework), None)
    if seen:
        return seen
    keys = [key for config in configs for key in config.values]
    counts = [
        (sum(_matches(sign, key) for sign in tables.signs for key in keys), name)
        for name, tables in ((name, config_tables(name)) for name in frameworks())
        if tables is not None
    ]
    best = max(counts, default=(0, None))
    return best[1] if best[0] else None


def _version(
    tables: ConfigTables, stated: Mapping[str, ConfigValue], manifest: RunManifest
) -> tuple[str | None, str | None]:
    if manifest.framework_version:
        return manifest.framework_version, None
    guess = tables.version(stated)
    if guess is None:
        return None, None
    return guess, f"version {guess} or later is assumed from the keys: the run does not state it"


def strongest(configs: Iterable[RawConfig]) -> tuple[dict[str, ConfigValue], list[str]]:
    """Merge files; report keys to which two equally strong files give different values."""
    merged: dict[str, ConfigValue] = {}
    conflicts: list[str] = []
    notes: list[str] = []
    for config in configs:
        notes += config.notes
        for key, value in config.values.items():
            if _unresolved(value.value):
                continue
            known = merged.get(key)
            if known is None or _rank(value) < _rank(known):
                merged[key] = value
            elif _rank(value) == _rank(known) and value.value != known.value:
                conflicts.append(f"{key} ({known.provenance.source}, {value.provenance.source})")
    if conflicts:
        shown = ", ".join(conflicts[:3]) + (" …" if len(conflicts) > 3 else "")
        notes.append(f"{len(conflicts)} keys have two values; the first file counts: {shown}")
    return merged, notes


def _rank(value: ConfigValue) -> int:
    return _ORDER.index(value.provenance.kind)


def _unresolved(value: ConfigLeaf) -> bool:
    return isinstance(value, str) and "${" in value


@dataclass
class _Work:
    """Turns one framework's keys into fields, and sorts the keys that become none."""

    tables: ConfigTables
    stated: Mapping[str, ConfigValue]
    defaults: Mapping[str, Default]
    version: str | None
    assumption: str | None
    values: dict[str, EffectiveValue] = field(default_factory=dict)
    unmatched: list[ConfigValue] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)

    def resolve(self) -> None:
        """Fill ``values``: formulas on stated keys, keys, then both again with defaults."""
        used_by_formula = {key for f in self.tables.formulas for key in f.keys}
        for formula in self.tables.formulas:
            self._apply(formula)
        for key, value in self.stated.items():
            self._place(key, value, used_by_formula)
        for key in (k for k in self.defaults if k not in self.stated):
            name = _field_of(self.tables, key)
            if name is not None and name not in self.values:
                self._set(name, self._value(key), self.defaults[key].assumption)

    def _apply(self, formula: Formula) -> None:
        if formula.field in self.values or not all(self._has(key) for key in formula.keys):
            return
        inputs = [self._value(key) for key in formula.keys]
        result = formula.convert(*(value.value for value in inputs))
        if result is NOT_SET:
            return
        # Of the inputs the one a reader would change: the first that the run states.
        main = min(inputs, key=_rank)
        untouched = len(inputs) == 1 and result == main.value
        source = main if untouched else _computed(main, inputs, formula.text)
        assumed = [self.defaults[k].assumption for k in formula.keys if k not in self.stated]
        text = "; ".join(filter(None, [formula.assumption, *dict.fromkeys(assumed)]))
        self._set(formula.field, source, text or None, result)

    def _place(self, key: str, value: ConfigValue, used_by_formula: set[str]) -> None:
        name = _field_of(self.tables, key)
        if name is None:
            reason = _ignored(self.tables, key)
            if reason is None and value.value in (None, ()) and _is_section(self.tables, key):
                reason = "empty section · 空的配置段"
            if reason is not None:
                self.ignored[value.key] = reason
            elif key not in used_by_formula:
                self.unmatched.append(value)
        elif name not in self.values:
            self._set(name, value, None)
        elif key not in used_by_formula and self.values[name].raw.key != value.key:
            taken = self.values[name]
            if taken.raw.provenance.kind in (ProvenanceKind.DEFAULT,):
                self._set(name, value, None)
            elif value.value != taken.raw.value:
                self.ignored[value.key] = f"{taken.raw.key} counts"

    def _set(
        self, name: str, raw: ConfigValue, assumption: str | None, value: object = NOT_SET
    ) -> None:
        leaf = raw.value if value is NOT_SET else value
        kind = field_named(name).kind
        self.values[name] = EffectiveValue(name, canonical(leaf, kind), raw, assumption)  # type: ignore[arg-type]

    def _has(self, key: str) -> bool:
        return key in self.stated or key in self.defaults

    def _value(self, key: str) -> ConfigValue:
        if key in self.stated:
            return self.stated[key]
        default = self.defaults[key]
        user_key = self.tables.user_key(key)
        provenance = Provenance(ProvenanceKind.DEFAULT, default.source)
        return ConfigValue(user_key, default.value, provenance)


def _computed(main: ConfigValue, inputs: Sequence[ConfigValue], formula: str) -> ConfigValue:
    """Return the inputs as one value whose place is the main input's."""
    key = ", ".join(dict.fromkeys(value.key for value in inputs))
    value = main.value if len(inputs) == 1 else tuple(value.value for value in inputs)
    source = main.provenance
    if source.kind is ProvenanceKind.DEFAULT:
        return ConfigValue(key, value, replace(source, text=formula))
    return ConfigValue(
        key, value, Provenance(ProvenanceKind.DERIVED, source.source, source.line, formula)
    )


def _model_fields(configs: Sequence[RawConfig], notes: list[str]) -> dict[str, EffectiveValue]:
    """Take the architecture from config.json; two different ones are not told apart."""
    tables = config_tables("huggingface")
    models = [c for c in configs if c.format in _MODEL_FORMATS]
    if not models or tables is None:
        return {}
    leaves = {tuple(sorted((k, repr(v.value)) for k, v in c.values.items())) for c in models}
    if len(leaves) > 1:
        names = ", ".join(c.source for c in models)
        notes.append(f"several different config.json files, none is used: {names}")
        return {}
    work = _Work(tables, models[0].values, {}, None, None)
    work.resolve()
    return work.values


def _unknown_framework(
    name: str | None, training: Sequence[RawConfig], configs: Sequence[RawConfig]
) -> EffectiveConfig:
    """Keep what config.json says; every other key stays unmatched."""
    notes: list[str] = []
    values = _model_fields(configs, notes)
    stated, merge_notes = strongest(training)
    return EffectiveConfig(name, None, values, tuple(stated.values()), {}, (*merge_notes, *notes))


def _field_of(tables: ConfigTables, key: str) -> str | None:
    """Return the field a key is taken for: exact keys, then ignored ones, then families."""
    exact = tables.keys.get(key)
    if exact is not None:
        return str(exact)
    if _ignored(tables, key) is not None:
        return None
    for pattern, name in tables.keys.items():
        before, star, after = pattern.partition("*")
        fits = len(key) >= len(before) + len(after)
        if star and fits and key.startswith(before) and key.endswith(after):
            return str(name).replace("*", key[len(before) : len(key) - len(after)])
    return None


def _is_section(tables: ConfigTables, key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in tables.keys)


def _ignored(tables: ConfigTables, key: str) -> str | None:
    exact = tables.ignored.get(key)
    if exact is not None:
        return str(exact)
    patterns = tables.ignored.items()
    return next((str(why) for p, why in patterns if "*" in p and _matches(p, key)), None)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _matches(pattern: str, key: str) -> bool:
    return _compiled(pattern).match(key) is not None
