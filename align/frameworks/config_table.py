"""How a framework's configuration keys become fields of the common schema.

A framework module may have, for its configuration:

- ``CONFIG_KEYS``: key -> field, taken as it is. A trailing ``*`` stands for any rest and is carried
  over: ``"critic.*": "critic.*"``. Of several keys of one field the first that is set counts.
- ``CONFIG_FORMULAS``: fields made from several keys or in another unit; they come before
  ``CONFIG_KEYS``.
- ``CONFIG_IGNORED``: key pattern (fnmatch) -> why it has no effect on numbers, in English and
  Chinese: "logging · 日志".
- ``CONFIG_SIGNS``: keys no other framework has.
- ``config_view(values, version)``: the keys that really count, where sections overlay each other.
- ``config_defaults(values, version)``: values of keys that are not set.
- ``config_fixed(values, known, version)``: what the code does and no key sets.
- ``config_version(values)``: the oldest version that has these keys.
- ``CONFIG_RELEASES``: the versions whose defaults are known, oldest first.
- ``CONFIG_VARIANTS``: name -> settings on which other defaults depend, such as the trainer.
- ``default_history(key, engine, old, new)``: the defaults a key had between two versions.
- ``version_name(version)``: a stated version as ``config_versions`` names it, None where unknown.
- ``config_versions(values)``: every version that can have these keys, the one to assume first.
- ``user_key(key)``: where a user writes a key that ``config_view`` made.
- ``READS_MODEL_CONFIG``: whether the trainer takes the architecture from config.json.

All but ``CONFIG_KEYS`` may be absent. A framework with long tables keeps them in a module of their
own and names it ``CONFIG``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from align.core.config_value import ConfigLeaf, ConfigValue
from align.core.text import Text
from align.frameworks.registry import frameworks


class NotSet:
    """A formula's answer where its keys do not determine the field."""


NOT_SET = NotSet()


@dataclass(frozen=True, slots=True)
class Formula:
    """A field computed from keys that must all be set.

    Args:
        field: name in the common schema.
        keys: whose values ``convert`` takes, in order.
        convert: returns the value in the field's unit, or `NOT_SET`.
        text: the formula as a reader should see it.
        assumption: what the formula takes for granted.
    """

    field: str
    keys: tuple[str, ...]
    convert: Callable[..., Any]
    text: str
    assumption: Text | None = None


@dataclass(frozen=True, slots=True)
class Default:
    """A value that applies where a key is not set.

    ``assumption`` says what it takes for granted, None where it holds for every version.
    """

    value: ConfigLeaf
    source: str
    assumption: Text | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field that a framework's code decides: no key sets it.

    ``source`` names the framework and the version, ``text`` says what the code does, as a clause.
    """

    field: str
    value: ConfigLeaf
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class DefaultSpan:
    """A value a key has by default from one version on."""

    since: str
    value: ConfigLeaf


@dataclass(frozen=True, slots=True)
class ConfigView:
    """Keys that count, and keys that are set but not read, with the reason."""

    values: Mapping[str, ConfigValue]
    dead: Mapping[str, Text] = field(default_factory=dict)


Values = Mapping[str, ConfigValue]
Known = Mapping[str, ConfigLeaf]
"""Fields of the common schema that keys and defaults determine."""


@dataclass(frozen=True, slots=True, eq=False)  # one a framework: compared by identity
class ConfigTables:
    """Everything a framework module says about its configuration."""

    keys: Mapping[str, str]
    formulas: tuple[Formula, ...] = ()
    ignored: Mapping[str, Text] = field(default_factory=dict)
    signs: tuple[str, ...] = ()
    view: Callable[[Values, str | None], ConfigView] = lambda values, version: ConfigView(values)
    defaults: Callable[[Values, str | None], Mapping[str, Default]] = lambda *_: {}
    fixed: Callable[[Values, Known, str | None], Iterable[Fixed]] = lambda *_: ()
    version: Callable[[Values], str | None] = lambda values: None
    versions: Callable[[Values], tuple[str, ...]] = lambda values: ()
    version_name: Callable[[str], str | None] = lambda version: version
    default_history: Callable[[str, ConfigLeaf, str, str], tuple[DefaultSpan, ...]] = lambda *_: ()
    releases: tuple[str, ...] = ()
    variants: Mapping[str, Mapping[str, ConfigLeaf]] = field(default_factory=dict)
    user_key: Callable[[str], str] = str
    reads_model_config: bool = True


@cache
def config_tables(framework: str | None) -> ConfigTables | None:
    """Return a framework's tables, None where it has none or is not known."""
    module = frameworks().get(framework or "")
    module = getattr(module, "CONFIG", module)
    if module is None or not hasattr(module, "CONFIG_KEYS"):
        return None
    names = {
        "formulas": "CONFIG_FORMULAS",
        "signs": "CONFIG_SIGNS",
        "view": "config_view",
        "defaults": "config_defaults",
        "fixed": "config_fixed",
        "version": "config_version",
        "default_history": "default_history",
        "versions": "config_versions",
        "version_name": "version_name",
        "releases": "CONFIG_RELEASES",
        "variants": "CONFIG_VARIANTS",
        "user_key": "user_key",
        "reads_model_config": "READS_MODEL_CONFIG",
    }
    given = {k: getattr(module, name) for k, name in names.items() if hasattr(module, name)}
    ignored = getattr(module, "CONFIG_IGNORED", {})
    reasons = {pattern: Text(*why.split(" · ")) for pattern, why in ignored.items()}
    return ConfigTables(module.CONFIG_KEYS, ignored=reasons, **given)


def assumed_defaults(framework: str, known: str, stated: str | None) -> Text:
    """Say that the defaults of one version stand for those of another, or of one not stated."""
    if stated is None:
        return Text(
            f"defaults of {framework} {known}, as the run does not state its version",
            f"采用 {framework} {known} 的默认值，因为该次运行未说明版本",
        )
    return Text(
        f"defaults of {framework} {known}, the nearest known here; the run states {stated}",
        f"采用 {framework} {known} 的默认值（已有的最接近版本），而该次运行声明的版本为 {stated}",
    )


def number(value: object) -> float | None:
    """Return a number that YAML may have left as text, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def version_tuple(version: str | None) -> tuple[int, int] | None:
    """Return major and minor of ``0.9.1``, ``v0.9``, ``0.7.0.dev``; None where it has none."""
    parts = (version or "").lstrip("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])
