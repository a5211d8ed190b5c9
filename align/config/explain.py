"""What a configuration key does in each framework and version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from align.config.diff import scalar
from align.config.keys import field_of
from align.config.rules import rules
from align.config.schema import FIELDS, Field, field_named
from align.config.spelling import known_keys, most_alike
from align.config.versions import resolve_as
from align.core.config_value import ConfigLeaf, ConfigValue, Provenance, ProvenanceKind
from align.core.errors import ConfigError
from align.core.finding import Scalar
from align.core.text import Text
from align.frameworks.config_table import ConfigTables, config_tables
from align.frameworks.registry import frameworks

_NOT_A_REASON = "*"  # huggingface: every other key of config.json
_NUM_SUGGESTIONS = 5


@dataclass(frozen=True, slots=True)
class Place:
    """Where a framework keeps a field: one key as it is, or keys and the formula over them."""

    framework: str
    keys: tuple[str, ...]
    formula: str | None = None
    assumption: Text | None = None


@dataclass(frozen=True, slots=True)
class KnownDefault:
    """The value a field has where nothing sets it, from one version to another.

    ``variant`` names the trainer it is of, None where all have it.
    """

    framework: str
    variant: str | None
    first: str
    last: str
    value: Scalar


@dataclass(frozen=True, slots=True)
class Dead:
    """A key that nothing reads in some versions, with the reason."""

    framework: str
    key: str
    versions: tuple[str, ...]
    why: Text


@dataclass(frozen=True, slots=True)
class Explanation:
    """One field, and everything known about it."""

    field: str
    schema: Field
    places: tuple[Place, ...]
    defaults: tuple[KnownDefault, ...]
    rules: tuple[tuple[str, Text | None], ...]  # what a rule says of this field, for example
    dead: tuple[Dead, ...]


@dataclass(frozen=True, slots=True)
class Harmless:
    """A key that is known not to touch numbers."""

    framework: str
    key: str
    why: Text


def explain(key: str) -> tuple[tuple[Explanation, ...], tuple[Harmless, ...]]:
    """Return the fields a key sets, and the frameworks in which it touches no numbers.

    Args:
        key: of any framework, or a field of the common schema, or the last part of either.

    Raises:
        ConfigError: No table knows it; the message names the nearest spellings.
    """
    names = dict.fromkeys(_fields(key))
    harmless = tuple(_harmless(key))
    if not names and not harmless:
        names = dict.fromkeys(_by_last_part(key))
    if not names and not harmless:
        raise ConfigError(where=key, problem="is in no table", fix=_suggestion(key))
    return tuple(map(_explained, names)), harmless


def _suggestion(key: str) -> str:
    known = [name for tables in _tables() for name in known_keys(tables)]
    near = [name for name, _ in most_alike(key, {*known, *FIELDS}, _NUM_SUGGESTIONS)]
    if near:
        return f"did you mean {', '.join(near)}?"
    return "give a key as verl, MindSpeed-RL, TRL or Megatron spells it"


def _fields(key: str) -> Iterator[str]:
    """Yield the fields a whole key sets: a field's own name, else an exact key, else a family's."""
    if _is_field(key):
        yield key
        return
    exact = list(_exact_fields(key))
    yield from exact
    for tables in _tables().values() if not exact else ():
        found = (field_of(tables, viewed) for viewed in _viewed(tables, key))
        yield from (name for name in found if name is not None)


def _exact_fields(key: str) -> Iterator[str]:
    for name, tables in _tables().items():
        known = known_keys(name)
        if key in known:
            yield known[key]
        for viewed in _viewed(tables, key):
            if viewed in tables.keys:
                yield str(tables.keys[viewed])
            yield from (formula.field for formula in tables.formulas if viewed in formula.keys)


def _by_last_part(key: str) -> Iterator[str]:
    """Yield the fields of which a part of a key or of the name is ``key``."""
    end = f".{key}"
    for name in _tables():
        yield from (field for known, field in known_keys(name).items() if known.endswith(end))
    yield from (name for name in FIELDS if name.endswith(end))


def _is_field(name: str) -> bool:
    try:
        field_named(name)
    except KeyError:
        return False
    return True


def _harmless(key: str) -> Iterator[Harmless]:
    for name, tables in _tables().items():
        if name == "stack" and not key.startswith("stack."):
            continue  # it spells the rest as verl does
        named = {
            pattern: why for pattern, why in tables.ignored.items() if pattern != _NOT_A_REASON
        }
        for viewed in _viewed(tables, key):
            why = named.get(viewed) or _pattern_reason(named, viewed)
            if why is not None and viewed not in tables.keys:
                yield Harmless(name, key, why)


def _pattern_reason(ignored: Mapping[str, Text], key: str) -> Text | None:
    return next((why for pattern, why in ignored.items() if fnmatchcase(key, pattern)), None)


@cache
def _tables() -> Mapping[str, ConfigTables]:
    found = {name: config_tables(name) for name in frameworks()}
    return {name: tables for name, tables in found.items() if tables is not None}


def _viewed(tables: ConfigTables, key: str) -> tuple[str, ...]:
    """Return the keys that the framework's own overlay makes of one."""
    return tuple(tables.view({key: _set(key, None)}, None).values)


def _set(key: str, value: ConfigLeaf) -> ConfigValue:
    return ConfigValue(key, value, Provenance(ProvenanceKind.FILE, "example"))


def _explained(name: str) -> Explanation:
    places = tuple(_without_twins(p for framework in _tables() for p in _places(framework, name)))
    return Explanation(
        field=name,
        schema=field_named(name),
        places=places,
        defaults=tuple(d for framework in _tables() for d in _defaults(framework, name)),
        rules=tuple(_rules(name)),
        dead=tuple(d for framework in _tables() for d in _dead(framework, places)),
    )


def _without_twins(places: Iterable[Place]) -> Iterator[Place]:
    """Leave out what the bundled stack spells as verl does, and keys that stand in a formula."""
    places = list(places)
    others = {(p.keys, p.formula) for p in places if p.framework != "stack"}
    in_formulas = {(p.framework, p.keys) for p in places if p.formula is not None}
    for place in places:
        is_twin = place.framework == "stack" and (place.keys, place.formula) in others
        if not is_twin and (place.formula or (place.framework, place.keys) not in in_formulas):
            yield place


def _places(framework: str, name: str) -> Iterator[Place]:
    tables = _tables()[framework]
    for formula in tables.formulas:
        if formula.field == name:
            keys = tuple(tables.user_key(key) for key in formula.keys)
            yield Place(framework, keys, formula.text, formula.assumption)
    for key, field in tables.keys.items():
        if field == name or ("*" in key and field_named(field.replace("*", "x")).name == name):
            yield Place(framework, (tables.user_key(key),))


def _defaults(framework: str, name: str) -> Iterator[KnownDefault]:
    """Yield the defaults over the versions, equal neighbours as one; one trainer for all alike."""
    variants = list(_tables()[framework].variants) or [""]
    by_variant = {variant: _spans(framework, variant, name) for variant in variants}
    alike = len({tuple(spans) for spans in by_variant.values()}) == 1
    for variant, spans in by_variant.items():
        for first, last, value in spans:
            yield KnownDefault(framework, None if alike else variant or None, first, last, value)
        if alike:
            return


def _spans(framework: str, variant: str, name: str) -> list[tuple[str, str, Scalar]]:
    spans: list[tuple[str, str, Scalar]] = []
    for version in _tables()[framework].releases:
        values = _values_by_default(framework, variant, version)
        if name not in values:
            continue
        value = scalar(values[name])
        if spans and spans[-1][2] == value and type(spans[-1][2]) is type(value):
            spans[-1] = (spans[-1][0], version, value)
        else:
            spans.append((version, version, value))
    return spans


@cache
def _values_by_default(framework: str, variant: str, version: str) -> Mapping[str, ConfigLeaf]:
    """Resolve a configuration that sets nothing; a key nobody knows opens each section."""
    tables = _tables()[framework]
    sections = {key.rpartition(".")[0].partition(".")[0] for key in known_keys(framework)}
    stated = {f"{section}.align_explain": None for section in sections if section}
    stated |= dict.fromkeys(("megatron_training.hidden_size",) if "rl_config" in sections else ())
    set_by_variant = tables.variants.get(variant, {})
    values = {key: _set(key, value) for key, value in {**stated, **set_by_variant}.items()}
    work, _ = resolve_as(tables, values, version, (), with_defaults=True)
    chosen = {key for key in (*stated, *set_by_variant)}
    return {name: value.value for name, value in work.values.items() if value.raw.key not in chosen}


def _rules(name: str) -> Iterator[tuple[str, Text | None]]:
    """Yield the rules made for this field, each with what it says in its example of the field."""
    for rule in rules():
        if not any(pattern != "*" and fnmatchcase(name, pattern) for pattern in rule.FIELDS):
            continue
        example = next((e for e in rule.FIRES if e.field == name), None)
        ruling = rule.rule(example.case()) if example else None
        yield rule.__name__.rpartition(".")[2], ruling.because if ruling else None


def _dead(framework: str, places: tuple[Place, ...]) -> Iterator[Dead]:
    tables = _tables()[framework]
    keys = {key for place in places if place.framework == framework for key in place.keys}
    reasons: dict[tuple[str, Text], list[str]] = {}
    for version in tables.releases:
        dead = tables.view({key: _set(key, 1) for key in keys}, version).dead
        for key in sorted(keys & dead.keys()):
            why = dead[key]  # "verl 0.5.0 clips by …": the versions stand beside it
            text = Text(why.en.replace(f" {version}", ""), why.zh.replace(f" {version}", ""))
            reasons.setdefault((key, text), []).append(version)
    for (key, why), versions in reasons.items():
        yield Dead(framework, key, tuple(versions), why)
