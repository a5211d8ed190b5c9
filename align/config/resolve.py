"""One framework's keys and defaults, turned into fields of the common schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from align.config.comparable import canonical
from align.config.keys import field_of, is_section, why_ignored
from align.config.merge import rank
from align.config.schema import field_named
from align.core.config_value import ConfigValue, EffectiveValue, Provenance, ProvenanceKind
from align.core.text import Text, joined
from align.frameworks.config_table import NOT_SET, ConfigTables, Default, Formula

NO_KEY = "(no key)"
"""Stands for the key of what a framework's code does of itself."""


@dataclass
class Resolution:
    """Turns one framework's keys into fields, and sorts the keys that become none."""

    tables: ConfigTables
    stated: Mapping[str, ConfigValue]
    defaults: Mapping[str, Default]
    values: dict[str, EffectiveValue] = field(default_factory=dict)
    unmatched: list[ConfigValue] = field(default_factory=list)
    ignored: dict[str, Text] = field(default_factory=dict)
    notes: list[Text] = field(default_factory=list)

    def resolve(self) -> None:
        """Fill ``values``: formulas first, then stated keys in the tables' order, then defaults."""
        for formula in self.tables.formulas:
            self._apply(formula)
        order = {key: position for position, key in enumerate(self.tables.keys)}
        for key in sorted(self.stated, key=lambda key: order.get(key, len(order))):
            self._place(key, self.stated[key])
        for key in (k for k in self.defaults if k not in self.stated):
            name = field_of(self.tables, key)
            if name is not None and name not in self.values:
                self._set(name, self._value(key), self.defaults[key].assumption)

    def add_fixed(self, version: str | None) -> None:
        """Add what the framework's code of this version does and no key decides."""
        known = {name: value.value for name, value in self.values.items()}
        for fixed in self.tables.fixed(self.stated, known, version):
            if fixed.field not in self.values:
                provenance = Provenance(ProvenanceKind.FIXED, fixed.source, text=fixed.text)
                self._set(fixed.field, ConfigValue(NO_KEY, fixed.value, provenance), None)

    def _apply(self, formula: Formula) -> None:
        if not all(key in self.stated or key in self.defaults for key in formula.keys):
            return
        taken = self.values.get(formula.field)
        all_stated = all(key in self.stated for key in formula.keys)
        if taken is not None and not (all_stated and _gives_way(taken.raw)):
            return
        inputs = [self._value(key) for key in formula.keys]
        try:
            result = formula.convert(*(value.value for value in inputs))
        except (TypeError, ValueError, LookupError, ArithmeticError):
            stated = ", ".join(f"{value.key}: {value.value!r}"[:80] for value in inputs)
            self.notes.append(
                Text(
                    f"{formula.field} is unknown: {stated} cannot be used",
                    f"{formula.field} 未知：{stated} 无法使用",
                )
            )
            return
        if result is NOT_SET:
            return
        # Of the inputs the one a reader would change: the first that the run states.
        main = min(inputs, key=rank)
        untouched = len(inputs) == 1 and result == main.value
        source = main if untouched else _computed(main, inputs, formula.text)
        assumed = [self.defaults[k].assumption for k in formula.keys if k not in self.stated]
        assumptions = [text for text in dict.fromkeys([formula.assumption, *assumed]) if text]
        unset = tuple(self.tables.user_key(k) for k in formula.keys if k not in self.stated)
        assumption = joined(assumptions) if assumptions else None
        self._set(formula.field, source, assumption, result, unset)

    def _place(self, key: str, value: ConfigValue) -> None:
        """Make a stated key a field, or sort it among the ignored or unmatched ones."""
        in_formula = any(key in formula.keys for formula in self.tables.formulas)
        name = field_of(self.tables, key)
        if in_formula and key not in self.tables.keys:
            return
        if name is None:
            self._sort(key, value)
        elif name not in self.values or (not in_formula and _gives_way(self.values[name].raw)):
            self._set(name, value, None)
        elif value.value not in (None, self.values[name].raw.value) and not in_formula:
            counts = self.values[name].raw.key
            self.ignored[value.key] = Text(f"{counts} counts", f"以 {counts} 为准")

    def _sort(self, key: str, value: ConfigValue) -> None:
        reason = why_ignored(self.tables, key)
        if reason is None and value.value in (None, ()) and is_section(self.tables, key):
            reason = Text("empty section", "空的配置段")
        if reason is None:
            self.unmatched.append(value)
        else:
            self.ignored[value.key] = reason

    def _set(
        self,
        name: str,
        raw: ConfigValue,
        assumption: Text | None,
        value: object = NOT_SET,
        unset: tuple[str, ...] = (),
    ) -> None:
        leaf = raw.value if value is NOT_SET else value
        kind = field_named(name).kind
        self.values[name] = EffectiveValue(name, canonical(leaf, kind), raw, assumption, unset)  # type: ignore[arg-type]

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


def _gives_way(taken: ConfigValue) -> bool:
    """Tell whether another key of the same field replaces this one: it sets nothing itself."""
    return taken.provenance.kind is ProvenanceKind.DEFAULT or taken.value is None
