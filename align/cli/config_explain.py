"""``align config explain``: what one key does, in each framework and version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from align.cli.options import json_option, lang_option
from align.core.text import Text

if TYPE_CHECKING:
    from align.config.explain import Dead, Explanation, Harmless, KnownDefault, Place

_NAMES = {
    "huggingface": "config.json",
    "megatron": "Megatron",
    "mindspeed_rl": "MindSpeed-RL",
    "stack": "align train",
    "trl": "TRL",
    "vllm": "vLLM",
}
_UNIT, _NO_UNIT = Text("unit", "单位"), Text("none", "无")
_ACTS = Text("acts on", "作用环节")
_SEVERITY = Text("a difference is", "差异的级别")
_CONDITION = Text("only if", "生效条件")
_WHERE = Text("Where each framework keeps it:", "各框架中的位置：")
_DEFAULT = Text("Default:", "默认值：")
_RULES = Text("Rules that look at it:", "涉及它的规则：")
_DEAD = Text("Not read:", "不被读取的情况：")
_NOT_COMPARED = Text(
    "Values of two frameworks are not compared: they do not mean the same.",
    "不同框架之间不比较该值：含义不同。",
)


@click.command("explain")
@click.argument("key")
@lang_option
@json_option
def explain(key: str, lang: str, as_json: bool) -> None:
    """Say what KEY does: of any framework, or a field's name as `align config diff` shows it."""
    from align.config.explain import explain as explained

    fields, harmless = explained(key)
    if as_json:
        document = {
            "schema_version": 1,
            "key": key,
            "fields": [as_document(field) for field in fields],
            "harmless": [
                {"framework": h.framework, "key": h.key, **_both(why=h.why)} for h in harmless
            ],
        }
        click.echo(json.dumps(document, ensure_ascii=False, indent=1))
        return
    blocks = ["\n".join(_lines(field, lang)) for field in fields]
    blocks += [_harmless_line(item, lang) for item in harmless]
    click.echo("\n\n".join(blocks))


def as_document(explanation: Explanation) -> dict[str, Any]:
    """Return one field as JSON-ready values."""
    schema = explanation.schema
    return {
        "field": explanation.field,
        "kind": schema.kind.value,
        "unit": schema.unit,
        "acts_on": schema.acts_on.value,
        "severity": schema.severity.value,
        "strength": schema.strength.value,
        "only_if": schema.only_if,
        "between_frameworks": schema.between_frameworks,
        **_both(meaning=schema.meaning, why=schema.why),
        "places": [
            {
                "framework": place.framework,
                "keys": list(place.keys),
                "formula": place.formula,
                **_both(assumption=place.assumption),
            }
            for place in explanation.places
        ],
        "defaults": [
            {
                "framework": default.framework,
                "variant": default.variant,
                "first": default.first,
                "last": default.last,
                "value": default.value,
            }
            for default in explanation.defaults
        ],
        "rules": [{"rule": name, **_both(says=says)} for name, says in explanation.rules],
        "dead": [
            {
                "framework": d.framework,
                "key": d.key,
                "versions": list(d.versions),
                **_both(why=d.why),
            }
            for d in explanation.dead
        ],
    }


def _both(**texts: Text | None) -> dict[str, Any]:
    """Return English under each name and Chinese under ``zh``, as in report.json."""
    english = {name: None if text is None else text.en for name, text in texts.items()}
    return {**english, "zh": {name: text.zh for name, text in texts.items() if text is not None}}


def _lines(explanation: Explanation, lang: str) -> Iterator[str]:
    schema = explanation.schema
    yield f"{explanation.field}: {schema.meaning.in_language(lang)}"
    facts = [
        (_UNIT, schema.unit or _NO_UNIT.in_language(lang)),
        (_ACTS, schema.acts_on.value),
        (_SEVERITY, f"{schema.severity.value} ({schema.strength.value})"),
        (_CONDITION, schema.only_if or ""),
    ]
    yield "  " + "; ".join(f"{name.in_language(lang)}: {value}" for name, value in facts if value)
    if schema.why is not None:
        yield f"  {schema.why.in_language(lang)}"
    if not schema.between_frameworks:
        yield f"  {_NOT_COMPARED.in_language(lang)}"
    sections = (
        (_WHERE, [_place(place, lang) for place in explanation.places]),
        (_DEFAULT, [_default(default) for default in explanation.defaults]),
        (_RULES, [_rule(name, says, lang) for name, says in explanation.rules]),
        (_DEAD, [_dead(dead, lang) for dead in explanation.dead]),
    )
    for title, lines in sections:
        if lines:
            yield f"  {title.in_language(lang)}"
            yield from (f"    {line}" for line in lines)


def _place(place: Place, lang: str) -> str:
    shown = ", ".join(place.keys)
    if place.formula is not None and place.formula != shown:
        shown = f"{place.formula} [{shown}]"
    if place.assumption is not None:
        shown = f"{shown} ({place.assumption.in_language(lang)})"
    return f"{_name(place.framework)}: {shown}"


def _rule(name: str, says: Text | None, lang: str) -> str:
    return name if says is None else f"{name}: {says.in_language(lang)}"


def _default(default: KnownDefault) -> str:
    versions = default.first if default.first == default.last else f"{default.first}-{default.last}"
    variant = f" {default.variant}" if default.variant else ""
    return f"{_name(default.framework)}{variant} {versions}: {default.value}"


def _dead(dead: Dead, lang: str) -> str:
    first, last = dead.versions[0], dead.versions[-1]
    versions = first if first == last else f"{first}-{last}"
    return f"{_name(dead.framework)} {versions}: {dead.key}: {dead.why.in_language(lang)}"


def _harmless_line(item: Harmless, lang: str) -> str:
    why = item.why.in_language(lang)
    text = Text(
        f"{item.key}: touches no numbers in {_name(item.framework)} ({why}).",
        f"{item.key}：在 {_name(item.framework)} 中不影响数值（{why}）。",
    )
    return text.in_language(lang)


def _name(framework: str) -> str:
    return _NAMES.get(framework, framework)
