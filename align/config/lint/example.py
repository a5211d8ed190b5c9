"""A run to try a check on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from align.config.derive import derive
from align.config.lint.one_run import OneRun
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.core.environment import EnvironmentFact
from align.core.finding import Evidence, Severity, Side
from align.core.text import Text

Stated = Mapping[str, ConfigLeaf]
Settings = dict[str, ConfigLeaf]  # to write parts of examples with


@dataclass(frozen=True, slots=True)
class Example:
    """What a run sets, and what a check must make of it.

    Args:
        values: fields it sets.
        severity: of the worst finding, in an example that fires.
        framework: name of the framework.
        version: of the framework, None where it is not known.
        assumed_version: whether the run does not state that version.
        defaults: fields it leaves at their default.
        stated: keys as the run writes them.
        dead: keys that it sets and nothing reads.
        model: fields of config.json.
        model_file: keys of config.json.
        generation: keys of generation_config.json.
        facts: versions and environment variables.
    """

    values: Stated = field(default_factory=dict)
    severity: Severity = Severity.WARNING
    framework: str = "verl"
    version: str | None = "0.9.1"
    assumed_version: bool = False
    defaults: Stated = field(default_factory=dict)
    stated: Stated = field(default_factory=dict)
    dead: tuple[str, ...] = ()
    model: Stated = field(default_factory=dict)
    model_file: Stated = field(default_factory=dict)
    generation: Stated = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> OneRun:
        """Return the example as checks see it, derived quantities included."""
        known = _fields(self.values, ProvenanceKind.FILE)
        known |= _fields(self.defaults, ProvenanceKind.DEFAULT)
        config = EffectiveConfig(
            self.framework,
            self.version,
            known | derive(known, self.framework),
            ignored={key: Text("nothing reads it", "不会被读取") for key in self.dead},
        )
        return OneRun(
            config,
            _keys(self.stated, "example.yaml"),
            _fields(self.model, ProvenanceKind.MODEL_CONFIG),
            _keys(self.model_file, "config.json"),
            _keys(self.generation, "generation_config.json"),
            {name: _fact(name, value) for name, value in self.facts.items()},
            states_version=self.version is not None and not self.assumed_version,
        )


def _fields(values: Stated, kind: ProvenanceKind) -> dict[str, EffectiveValue]:
    place = Provenance(kind, "example")
    return {
        name: EffectiveValue(name, value, ConfigValue(name, value, place))
        for name, value in values.items()
    }


def _keys(values: Stated, source: str) -> dict[str, ConfigValue]:
    place = Provenance(ProvenanceKind.FILE, source)
    return {key: ConfigValue(key, value, place) for key, value in values.items()}


def _fact(name: str, value: str) -> EnvironmentFact:
    return EnvironmentFact(name, value, Evidence("console.log", Side.BOTH, key=name))
