"""The command line of a trial."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from align.bisect.knob import Knob, KnobKind, Setting
from align.bisect.plan import Plan
from align.config.translation_text import literal
from align.core.config_value import ConfigLeaf

_PLACEHOLDER = re.compile(r"\{([\w.-]+)\}")


def command_line(plan: Plan, setting: Setting, out: Path, tree: Path | None) -> str:
    """Return the shell text of a trial: version commands first, then the plan's command."""
    chosen = list(zip(plan.knobs, setting, strict=True))
    values = {"out": shlex.quote(str(out)), "overrides": " ".join(_overrides(plan, setting))}
    if tree is not None:
        values["tree"] = shlex.quote(str(tree))
    for knob, level in chosen:
        if knob.kind in (KnobKind.VERSION, KnobKind.COMMIT):
            values[knob.name] = shlex.quote(str(knob.values[level]))
    before = [knob.commands[level] for knob, level in chosen if knob.commands]
    text = _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), plan.command)
    return "\n".join([*(line for line in before if line), text])


def environment(plan: Plan, setting: Setting, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the process environment of a trial; a variable of value None is taken out."""
    made = dict(inherited)
    for knob, level in zip(plan.knobs, setting, strict=True):
        if knob.kind is KnobKind.ENVIRONMENT:
            value = knob.values[level]
            made.pop(knob.name, None)
            if value is not None:
                made[knob.name] = plain(value)
    return made


def values_of(knobs: Sequence[Knob], setting: Setting) -> dict[str, ConfigLeaf]:
    """Return what every knob is set to."""
    return {k.name: k.values[level] for k, level in zip(knobs, setting, strict=True)}


def placeholders(command: str) -> set[str]:
    """Return the names in braces."""
    return set(_PLACEHOLDER.findall(command))


def template(words: Sequence[str]) -> str:
    """Return the words of a command as shell text in which placeholders stay open.

    A single word is shell text already.
    """
    text = words[0] if len(words) == 1 else " ".join(map(_quoted, words))
    return text if "{overrides}" in text else f"{text} {{overrides}}"


def plain(value: ConfigLeaf) -> str:
    """Return a value as the text of an environment variable."""
    return value if isinstance(value, str) else literal(value)


def _overrides(plan: Plan, setting: Setting) -> list[str]:
    return [
        shlex.quote(
            plan.override.replace("{key}", knob.name).replace(
                "{value}", literal(knob.values[level])
            )
        )
        for knob, level in zip(plan.knobs, setting, strict=True)
        if knob.kind is KnobKind.CONFIG
    ]


def _quoted(word: str) -> str:
    parts = re.split(r"(\{[\w.-]+\})", word)
    quoted = [part if i % 2 else shlex.quote(part) for i, part in enumerate(parts) if part]
    return "".join(quoted) or "''"
