"""Every setting that differs between two runs, as knobs in the candidate framework's keys."""

from __future__ import annotations

from collections.abc import Iterator

from align.bisect.knob import Knob, KnobKind
from align.bisect.plan import LeftOut
from align.config.diff import Compared, compare_configs, scalar
from align.config.schema import field_named
from align.config.translate import TARGETS, Written, translate
from align.core.config_value import ConfigLeaf, EffectiveConfig, EffectiveValue, ProvenanceKind
from align.core.finding import Strength

_SET_BY_NO_KEY = (ProvenanceKind.FIXED, ProvenanceKind.MODEL_CONFIG)


def config_knobs(
    reference: EffectiveConfig, candidate: EffectiveConfig
) -> tuple[tuple[Knob, ...], tuple[LeftOut, ...]]:
    """Return a knob for every key that differs and can be set, and what is left out.

    Between two frameworks the reference's values are written in the candidate's keys, as
    `align config translate` writes them.
    """
    knobs: dict[str, Knob] = {}
    left: dict[str, LeftOut] = {}
    written = _translated(reference, candidate)
    differing = [row for row in compare_configs(reference, candidate).compared if not row.same]
    for row in sorted(differing, key=_severity):
        if row.name.startswith("derived."):
            continue  # follows from the others
        found = _knobs(row, written)
        if isinstance(found, LeftOut):
            left[found.name] = found
        else:
            knobs |= {knob.name: knob for knob in found if knob.name not in knobs}
    if reference.framework == candidate.framework:
        knobs = {knob.name: knob for knob in _unknown_keys(reference, candidate)} | knobs
    return tuple(knobs.values()), tuple(left.values())


def _severity(row: Compared) -> int:
    return row.finding.severity.rank if row.finding is not None else 3


def _knobs(row: Compared, written: dict[str, Written] | None) -> list[Knob] | LeftOut:
    finding, candidate = row.finding, row.candidate.raw
    if finding is not None and finding.mechanism and finding.mechanism.strength is Strength.NONE:
        return LeftOut(row.name, "changes no numbers here")
    if finding is None and field_named(row.name).strength is Strength.NONE:
        return LeftOut(row.name, "changes no numbers")
    theirs = _stated(row.candidate)
    if written is not None:
        item = written.get(row.name)
        if item is None:
            return LeftOut(row.name, "the candidate's framework has no key for it")
        if item.key not in theirs:
            return LeftOut(row.name, f"several keys of the candidate make it ({candidate.key})")
        return [_two(item.key, item.value, theirs[item.key])]
    ours = _stated(row.reference)
    keys = [key for key in ours if key in theirs and scalar(ours[key]) != scalar(theirs[key])]
    if not keys:
        return LeftOut(row.name, f"no key that both sides have sets it ({candidate.key})")
    return [_two(key, ours[key], theirs[key]) for key in keys]


def _stated(value: EffectiveValue) -> dict[str, ConfigLeaf]:
    """Return the keys that a field is made from, with their values; none where no key sets it."""
    raw = value.raw
    if raw.provenance.kind in _SET_BY_NO_KEY:
        return {}
    keys = raw.key.split(", ")
    if len(keys) == 1:
        return {raw.key: raw.value}
    values = raw.value if isinstance(raw.value, tuple) else ()
    return dict(zip(keys, values, strict=True)) if len(values) == len(keys) else {}


def _two(key: str, reference: ConfigLeaf, candidate: ConfigLeaf) -> Knob:
    return Knob(key, KnobKind.CONFIG, (reference, candidate))


def _translated(
    reference: EffectiveConfig, candidate: EffectiveConfig
) -> dict[str, Written] | None:
    """Return the reference in the candidate's keys by field; None where it has them already."""
    if reference.framework == candidate.framework:
        return None
    if candidate.framework not in TARGETS:
        return {}
    translation = translate(reference, str(candidate.framework))
    return {source.field: item for item in translation.written for source in item.sources}


def _unknown_keys(reference: EffectiveConfig, candidate: EffectiveConfig) -> Iterator[Knob]:
    """Yield keys that no table knows, stated by both sides with other values."""
    stated = {value.key: value.value for value in reference.unmatched}
    for value in candidate.unmatched:
        if value.key in stated and scalar(stated[value.key]) != scalar(value.value):
            yield _two(value.key, stated[value.key], value.value)
