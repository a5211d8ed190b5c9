"""One difference in its surroundings, what a rule says about it, and examples of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field

from align.config.derive import derive
from align.config.schema import Field, field_named
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import number

Stated = Mapping[str, ConfigLeaf]


@dataclass(frozen=True, slots=True)
class Case:
    """A field whose effective values differ, with everything else the two runs set."""

    field: Field
    reference: EffectiveValue
    candidate: EffectiveValue
    reference_config: EffectiveConfig
    candidate_config: EffectiveConfig

    @property
    def name(self) -> str:
        """Full name, also of a member of a family."""
        return self.reference.field

    @property
    def frameworks(self) -> tuple[str | None, str | None]:
        """Framework of the reference and of the candidate."""
        return self.reference_config.framework, self.candidate_config.framework

    def values(self, name: str) -> tuple[ConfigLeaf, ConfigLeaf]:
        """Return another field's values, None where a side does not know it."""
        sides = (self.reference_config.values, self.candidate_config.values)
        reference, candidate = (side[name].value if name in side else None for side in sides)
        return reference, candidate

    @property
    def assumed_versions(self) -> list[Text]:
        """Say which version is assumed of a side that does not state its own."""
        notes = (*self.reference_config.notes, *self.candidate_config.notes)
        return [note for note in notes if note.en.startswith("version ")]

    def both(self, name: str, value: ConfigLeaf) -> bool:
        """Tell whether another field has this value on both sides."""
        return self.values(name) == (value, value)

    def numbers(self, name: str) -> tuple[float | None, float | None]:
        """Return another field's values as numbers, None where a side has none."""
        reference, candidate = map(number, self.values(name))
        return reference, candidate

    def off(self, name: str) -> bool:
        """Tell whether another field is known to be false, zero or empty on both sides."""
        sides = (self.reference_config.values, self.candidate_config.values)
        return all(name in side and not side[name].value for side in sides)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule changes about a difference, and why; None leaves a judgement as it is.

    ``instead`` says that ``because`` takes the place of the field's own reason. ``signature`` adds
    metric patterns, ``fix`` follows the field's own. ``by_version`` says that the ruling depends on
    the framework's version, which may be an assumption.
    """

    because: Text
    severity: Severity | None = None
    strength: Strength | None = None
    acts_on: Rung | None = None
    by_version: bool = False
    instead: bool = False
    signature: tuple[str, ...] = ()
    fix: Text | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A difference to try a rule on: the field's two values and what else is set.

    ``reference`` and ``candidate`` hold further fields; ``both`` holds those of either side.
    ``unset`` tells which of the two values is the framework's default; ``keys`` are the frameworks'
    names of the field where a rule looks at them.
    """

    field: str
    values: tuple[ConfigLeaf, ConfigLeaf]
    both: Stated = dataclass_field(default_factory=dict)
    reference: Stated = dataclass_field(default_factory=dict)
    candidate: Stated = dataclass_field(default_factory=dict)
    frameworks: tuple[str, str] = ("verl", "verl")
    versions: tuple[str | None, str | None] = ("0.9.1", "0.9.1")
    unset: tuple[bool, bool] = (False, False)
    keys: tuple[str, str] | None = None  # e.g. actor_rollout_ref.rollout.n

    def case(self) -> Case:
        """Return the example as rules see it, derived quantities included."""
        sides = []
        for index, own in enumerate((self.reference, self.candidate)):
            stated = {**self.both, **own, self.field: self.values[index]}
            known = {name: _stated(name, value) for name, value in stated.items()}
            if self.unset[index]:
                source = f"default of {self.frameworks[index]}"
                known[self.field] = _stated(
                    self.field, self.values[index], Provenance(ProvenanceKind.DEFAULT, source)
                )
            if self.keys is not None:
                own_value = known[self.field]
                raw = replace(own_value.raw, key=self.keys[index])
                known[self.field] = replace(own_value, raw=raw)
            values = known | derive(known, self.frameworks[index])
            sides.append(EffectiveConfig(self.frameworks[index], self.versions[index], values))
        first, second = sides
        return Case(
            field_named(self.field), first.values[self.field], second.values[self.field], *sides
        )


_FILE = Provenance(ProvenanceKind.FILE, "example")


def _stated(name: str, value: ConfigLeaf, provenance: Provenance = _FILE) -> EffectiveValue:
    return EffectiveValue(name, value, ConfigValue(name, value, provenance))
