"""Findings on keys that no table knows: a misspelled one leaves another setting at its default."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from align.config.comparable import canonical, equal
from align.config.diff import scalar
from align.config.schema import Field, field_named
from align.config.spelling import Near, misspelled, nearest
from align.core.config_value import (
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    ProvenanceKind,
)
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.rung import Rung
from align.core.text import Text

_NUM_SHOWN = 5

Sides = tuple[EffectiveConfig, EffectiveConfig]


@dataclass(frozen=True, slots=True)
class Misspelling:
    """A key that was meant to be another one, which its run does not set.

    ``stays`` is the value in effect instead, None where that is not known.
    """

    side: Side
    written: ConfigValue
    near: Near
    stays: EffectiveValue | None


def misspellings(side: Side, config: EffectiveConfig, stated: Collection[str]) -> list[Misspelling]:
    """Find unmatched keys that look like a setting that matters and that is not set.

    Args:
        side: whose configuration it is.
        config: with its unmatched keys.
        stated: every key the run sets.
    """
    found = []
    for value in config.unmatched:
        near = misspelled(config.framework, value.key)
        if near is None or near.key in stated:
            continue
        field, stays = field_named(near.field), config.values.get(near.field)
        if field.severity is Severity.INFO or _takes_effect(field, value, stays):
            continue
        found.append(Misspelling(side, value, near, stays))
    return found


def _takes_effect(field: Field, written: ConfigValue, stays: EffectiveValue | None) -> bool:
    """Tell whether what the user meant holds all the same, or another key decides the field."""
    if stays is None:
        return False
    if stays.raw.provenance.kind is not ProvenanceKind.DEFAULT:
        return True
    return equal(canonical(written.value, field.kind), stays.value, field.kind)


def misspelled_findings(sides: Sides, found: Sequence[Misspelling]) -> Iterator[Finding]:
    """Yield one warning for each field that a misspelled key leaves at its default."""
    for name in dict.fromkeys(item.near.field for item in found):
        yield _misspelled(name, sides, [item for item in found if item.near.field == name])


def _misspelled(name: str, sides: Sides, found: Sequence[Misspelling]) -> Finding:
    first, meaning = found[0], field_named(name).meaning
    key = first.written.key
    what, states = Text("is not set", "未被设置"), [c.values.get(name) for c in sides]
    if first.stays is not None:
        value = scalar(first.stays.value)
        what = Text(f"stays at its default {value}", f"仍为默认值 {value}")
    written = [f"{item.near.key}: {scalar(item.written.value)}" for item in found]
    meant = ", ".join(dict.fromkeys(written))
    return Finding(
        id=f"config.misspelled.{name}",
        rung=Rung.CONFIG,
        severity=Severity.WARNING,
        title=Text(
            f"{key} is not read; {meaning.en} ({first.near.key}) {what.en}",
            f"{key} 不会被读取；{meaning.zh}（{first.near.key}）{what.zh}",
        ),
        reference=None if states[0] is None else scalar(states[0].value),
        candidate=None if states[1] is None else scalar(states[1].value),
        evidence=tuple(_evidence(item.side, item.written) for item in found),
        why=Text(
            "No version known here reads this key, and the one it resembles is not set: the value "
            "that was meant is not in effect.",
            "已知的任何版本都不读取该键，而与它相近的键未被设置：想设定的值没有生效。",
        ),
        fix=Text(
            f"Write {meant} instead, or remove the line.",
            f"改写为 {meant}，或删除该行。",
        ),
    )


def unknown_finding(sides: Sides) -> Finding | None:
    """Report every key in no table in one finding, None where there is none."""
    keys: dict[str, Near | None] = {
        value.key: nearest(config.framework, value.key)
        for config in sides
        for value in config.unmatched
    }
    if not keys:
        return None
    shown = ", ".join(list(keys)[:_NUM_SHOWN]) + (" …" if len(keys) > _NUM_SHOWN else "")
    close = [(key, near.key) for key, near in keys.items() if near is not None][:_NUM_SHOWN]
    hints = Text(
        " ".join(f"{key} resembles {near}." for key, near in close),
        "".join(f"{key} 与 {near} 相近。" for key, near in close),
    )
    return Finding(
        id="config.unknown_keys",
        rung=Rung.CONFIG,
        severity=Severity.INFO,
        title=Text(
            f"{len(keys)} keys are in no table: {shown}", f"{len(keys)} 个键不在任何表中：{shown}"
        ),
        reference=len(sides[0].unmatched),
        candidate=len(sides[1].unmatched),
        evidence=tuple(
            _evidence(side, value)
            for side, config in zip((Side.REFERENCE, Side.CANDIDATE), sides, strict=True)
            for value in config.unmatched[:_NUM_SHOWN]
        ),
        why=Text(
            "They are shown and not judged: a fork's own key, a misspelling, or a newer version. "
            f"{hints.en}".strip(),
            f"仅列出而不作判断：可能是分支自定义的键、拼写错误或更新的版本。{hints.zh}",
        ),
        fix=Text(
            "Look at those whose values differ; the table names the nearest known key.",
            "请查看取值不同的键；表中给出了最接近的已知键。",
        ),
    )


def _evidence(side: Side, value: ConfigValue) -> Evidence:
    found = value.provenance
    return Evidence(found.source, side, found.line, value.key, found.text)
