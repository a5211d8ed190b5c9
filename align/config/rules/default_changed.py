"""Where both sides have a default, it is the framework that changed, in a version that is known."""

from __future__ import annotations

from itertools import pairwise

from align.config.case import Case, Example, Ruling
from align.config.comparable import canonical, equal
from align.config.schema import ValueKind
from align.core.config_value import (
    ConfigLeaf,
    EffectiveConfig,
    EffectiveValue,
    ProvenanceKind,
)
from align.core.text import Text
from align.frameworks.config_table import DefaultSpan, config_tables

FIELDS = ("*",)

_FIXED = ProvenanceKind.FIXED


def rule(case: Case) -> Ruling | None:
    """Say from what to what a default changed and when, for every key behind the difference."""
    sides = (case.reference_config, case.candidate_config)
    framework, versions = sides[0].framework, [side.framework_version for side in sides]
    if framework != sides[1].framework or None in versions or versions[0] == versions[1]:
        return None
    if case.reference.raw.provenance.kind is case.candidate.raw.provenance.kind is _FIXED:
        spans = _history(case.name, sides[0], sides[1])
        return _ruling(_of_itself(str(framework), spans)) if len(spans) > 1 else None
    keys = _keys(case.reference, sides[0]), _keys(case.candidate, sides[1])
    if keys[0] is None or keys[1] is None:
        return None
    said = [_changed(key, str(framework), sides) for key in keys[0] if key in keys[1]]
    told = [text for text in said if text is not None]
    if not told and set(keys[0]) != set(keys[1]):
        told = [_replaced(keys[0], keys[1], str(framework), sides)]
    if not told:
        return None
    return _ruling(Text(" ".join(t.en for t in told), "".join(t.zh for t in told)))


def _ruling(text: Text) -> Ruling:
    return Ruling(text, by_version=True)


def _keys(value: EffectiveValue, config: EffectiveConfig) -> tuple[str, ...] | None:
    """Return the keys a value was made from, None unless each has the default of its version."""
    keys = tuple(value.raw.key.split(", "))
    stated = value.raw.value
    values = stated if len(keys) > 1 and isinstance(stated, tuple) else (stated,)
    if len(values) != len(keys):
        return None
    for key, leaf in zip(keys, values, strict=True):
        spans = _history(key, config, config)
        if len(spans) != 1 or not _equal(spans[0].value, leaf):
            return None
    return keys


def _history(
    key: str, reference: EffectiveConfig, candidate: EffectiveConfig
) -> tuple[DefaultSpan, ...]:
    tables = config_tables(reference.framework)
    strategy = candidate.values.get("actor.strategy")
    versions = reference.framework_version, candidate.framework_version
    if tables is None or versions[0] is None or versions[1] is None:
        return ()
    engine = strategy.value if strategy is not None else None
    return tables.default_history(key, engine, versions[0], versions[1])


def _equal(first: ConfigLeaf, second: ConfigLeaf) -> bool:
    kind = ValueKind.ANY
    return equal(canonical(first, kind), canonical(second, kind), kind)


def _changed(
    key: str, framework: str, sides: tuple[EffectiveConfig, EffectiveConfig]
) -> Text | None:
    spans = _history(key, *sides)
    steps = list(pairwise(spans))
    if not steps:
        return None
    en = ", then ".join(
        f"from {old.value} to {new.value} in {framework} {new.since}" for old, new in steps
    )
    zh = "，".join(
        f"在 {framework} {new.since} 中由 {old.value} 改为 {new.value}" for old, new in steps
    )
    return Text(f"The default of {key} changed {en}.", f"{key} 的默认值{zh}。")


def _replaced(
    reference: tuple[str, ...],
    candidate: tuple[str, ...],
    framework: str,
    sides: tuple[EffectiveConfig, EffectiveConfig],
) -> Text:
    """Say that each side has its own version's default, under another key."""
    shown = [
        f"{key}: {_history(key, config, config)[0].value} ({framework} {config.framework_version})"
        for keys, config in zip((reference, candidate), sides, strict=True)
        for key in keys
    ]
    listed = ", ".join(shown)
    return Text(
        f"Each side has the default of its version: {listed}.",
        f"两侧均为各自版本的默认值：{listed}。",
    )


def _of_itself(framework: str, spans: tuple[DefaultSpan, ...]) -> Text:
    old, new = spans[0], spans[-1]
    return Text(
        f"{framework} changed it from {old.value} to {new.value} in {new.since}.",
        f"{framework} 在 {new.since} 中将其由 {old.value} 改为 {new.value}。",
    )


_VERSIONS = ("0.6.1", "0.7.0")
_KEY = "actor_rollout_ref.model.use_remove_padding"
FIRES = (Example("model.remove_padding", (False, True), versions=_VERSIONS, keys=(_KEY, _KEY)),)
SILENT = (
    Example("model.remove_padding", (True, False), versions=_VERSIONS, keys=(_KEY, _KEY)),
    Example("model.remove_padding", (False, True), keys=(_KEY, _KEY)),
    Example("model.remove_padding", (False, True), versions=(None, "0.7.0"), keys=(_KEY, _KEY)),
)
