"""A finding about one run, with every place it was read from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from align.config.diff import scalar
from align.config.lint.one_run import OneRun
from align.core.config_value import ConfigLeaf, ConfigValue, EffectiveValue
from align.core.environment import EnvironmentFact
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text

Source = EffectiveValue | ConfigValue | EnvironmentFact


@dataclass(frozen=True, slots=True)
class Effect:
    """Where a problem acts and what size of effect it can have.

    Args:
        acts_on: first rung whose quantities it changes.
        strength: size of the effect.
        signature: metric patterns it explains at any size.
    """

    acts_on: Rung
    strength: Strength = Strength.SEMANTIC
    signature: tuple[str, ...] = ()


def problem(
    run: OneRun,
    name: str,
    severity: Severity,
    effect: Effect,
    seen: Iterable[Source],
    title: Text,
    why: Text,
    fix: Text,
) -> Finding:
    """Return the finding ``lint.<name>``.

    ``seen`` are the values it rests on; the first is the one a reader would change.
    """
    sources = tuple(seen)
    return Finding(
        id=f"lint.{name}",
        rung=effect.acts_on,
        severity=severity,
        title=title,
        reference=None,
        candidate=scalar(sources[0].value) if sources else None,
        evidence=tuple(_evidence(source, run.side) for source in sources),
        why=_with_assumptions(why, sources),
        fix=fix,
        mechanism=Mechanism(effect.acts_on, effect.strength, effect.signature),
    )


def shown(value: ConfigLeaf) -> str:
    """Return a value as a sentence has it; a whole float as an integer."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(scalar(value))


def _evidence(source: Source, side: Side) -> Evidence:
    if isinstance(source, EnvironmentFact):
        return source.evidence
    raw = source.raw if isinstance(source, EffectiveValue) else source
    stated = raw.value if isinstance(raw.value, tuple) else (raw.value,)
    place = raw.provenance
    return Evidence(
        source=place.source,
        side=side,
        line=place.line,
        key=raw.key,
        text=place.text[:200] if place.text else None,
        values=tuple(scalar(item) for item in stated),
    )


def _with_assumptions(why: Text, sources: Iterable[Source]) -> Text:
    assumed = dict.fromkeys(
        s.assumption for s in sources if isinstance(s, EffectiveValue) and s.assumption
    )
    en = "".join(f" Assumed: {text.en}." for text in assumed)
    zh = "".join(f"假设：{text.zh}。" for text in assumed)
    return Text(why.en + en, why.zh + zh)
