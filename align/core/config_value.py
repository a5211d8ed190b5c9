"""Configuration values and where each one comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from align.core.errors import AlignError
from align.core.text import Text

ConfigScalar = None | bool | int | float | str
ConfigLeaf = ConfigScalar | tuple["ConfigLeaf", ...]


class ProvenanceKind(str, Enum):
    """Where a value was found; definition order is precedence, strongest first."""

    PRINTED = "printed"  # resolved config printed by the run itself
    OVERRIDE = "override"  # command line or overrides.yaml
    FILE = "file"  # YAML or JSON the run was started with
    MODEL_CONFIG = "model_config"  # Hugging Face config.json of the model
    DEFAULT = "default"  # framework default of the stated version
    DERIVED = "derived"  # computed from other values
    FIXED = "fixed"  # done by the framework's code: no key sets it


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where one value was found."""

    kind: ProvenanceKind
    source: str  # file as given, or "default of verl 0.9.1", or a formula
    line: int | None = None  # 1-based
    text: str | None = None  # the source line, at most 200 characters


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One value under the key its file has it under (dotted path)."""

    key: str
    value: ConfigLeaf
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class RawConfig:
    """The leaves of one configuration file, as its own framework reads them.

    Lists of scalars are leaves (tuples); lists of mappings are flattened with ``[i]``. An empty
    mapping or list is the leaf ``()``. ``truncated_at`` names the last key read before the text
    ended or became unreadable. ``unknown`` are keys that are set to something the file does not
    tell (a shell variable, another key): neither a value nor a default may stand for them.
    ``problems`` are places its framework would refuse, left out so that the rest can be compared.
    """

    source: str
    format: str
    framework: str | None
    values: Mapping[str, ConfigValue]
    truncated_at: str | None = None
    num_unread_lines: int = 0
    notes: tuple[Text, ...] = ()
    unknown: tuple[str, ...] = ()
    problems: tuple[AlignError, ...] = ()


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """What a run really uses for one field of the common schema.

    ``value`` is in the schema's unit; ``raw`` is the key and value it was made from.
    """

    field: str
    value: ConfigLeaf
    raw: ConfigValue
    assumption: Text | None = None  # such as a version that the run does not state
    unset: tuple[str, ...] = ()  # of the keys it is made from, those the run does not set


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """Common-schema values of one run."""

    framework: str | None
    framework_version: str | None
    values: Mapping[str, EffectiveValue]
    unmatched: tuple[ConfigValue, ...] = ()  # keys in no table
    ignored: Mapping[str, Text] = field(default_factory=dict)  # key -> why it is harmless
    notes: tuple[Text, ...] = ()
