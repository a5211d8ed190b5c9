"""A translation as the files a user starts from: commented YAML, a launch script, config.json."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping

from align.config.diff import scalar
from align.config.translate import Left, Translation, Written
from align.core.config_value import ConfigLeaf, EffectiveValue, ProvenanceKind
from align.frameworks.mindspeed_rl_write import MODEL

_NAMES = {"verl": "verl", "mindspeed_rl": "MindSpeed-RL"}


def files(translation: Translation) -> dict[str, str]:
    """Return the files of a translation: relative path -> text, the main one first."""
    if translation.target == "mindspeed_rl":
        return _mindspeed_rl(translation)
    texts = {"train.sh": _verl(translation)}
    if translation.model:
        texts["model/config.json"] = json.dumps(translation.model, indent=2) + "\n"
    return texts


def _mindspeed_rl(translation: Translation) -> dict[str, str]:
    prefix = f"model.{MODEL}."
    model = [w for w in translation.written if w.key.startswith(prefix)]
    main = [w for w in translation.written if not w.key.startswith(prefix)]
    if not model:
        head = [*_head(translation), *_NO_MODEL, ""]
        return {"train.yaml": _text([*head, *_yaml(main)])}
    head = [*_head(translation), "defaults:", "  - model:", f"      - {MODEL}", ""]
    named = [Written(w.key.removeprefix("model."), w.value, w.sources) for w in model]
    return {
        "train.yaml": _text([*head, *_yaml(main)]),
        f"model/{MODEL}.yaml": _text(_yaml(named)),
    }


_NO_MODEL = (
    "# The source does not tell the architecture: give the model's config.json with it, or name",
    "# MindSpeed-RL's own file of the model here: defaults: [model: [qwen25_7b]].",
)


def _yaml(written: Iterable[Written]) -> Iterator[str]:
    """Yield nested YAML, one comment a key."""
    tree: dict[str, object] = {}
    for item in written:
        *sections, name = item.key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})  # type: ignore[assignment]
        branch[name] = item
    yield from _branch(tree, "")


def _branch(tree: Mapping[str, object], indent: str) -> Iterator[str]:
    for name, item in tree.items():
        if isinstance(item, Written):
            yield f"{indent}{name}: {literal(item.value)}{_origin(item)}"
        else:
            yield f"{indent}{name}:"
            assert isinstance(item, dict)
            yield from _branch(item, f"{indent}  ")
            if not indent:
                yield ""


def _verl(translation: Translation) -> str:
    strategies = [w.value for w in translation.written if w.key.endswith("actor.strategy")]
    trainer = "ppo_megatron_trainer" if "megatron" in strategies else None
    lines = ["#!/usr/bin/env bash", *_head(translation)]
    if translation.model:
        lines += [
            "# The model's config.json must say what model/config.json beside this file says;",
            "# compare them: align config diff model/config.json /path/to/model/config.json",
        ]
    lines += ["set -euo pipefail", "", "overrides=("]
    lines += [f"  {_override(w)}{_origin(w)}" for w in translation.written]
    command = "python3 -m verl.trainer.main_ppo"
    if trainer:
        command += f" --config-name={trainer}"
    return _text([*lines, ")", f'{command} "${{overrides[@]}}" "$@"'])


def _override(item: Written) -> str:
    """Return a Hydra override; a key the trainer's YAML lacks needs the plus sign."""
    plus = "+" if ".override_config." in item.key else ""
    value = literal(item.value)
    return shlex.quote(f"{plus}{item.key}={value}")


def _head(translation: Translation) -> Iterator[str]:
    source, target = translation.source, _NAMES[translation.target]
    version = f" {source.framework_version}" if source.framework_version else ""
    name = _NAMES.get(str(source.framework), str(source.framework))
    yield f"# Written by npu-align for {target} {translation.version}."
    yield f"# The source is a configuration of {name}{version}. Read back, this one"
    matters = [left for left in translation.left if left.matters]
    if matters:
        yield "# means the same but for this, which has no counterpart; decide each yourself:"
        for left in matters:
            yield f"#   {_left(left)}"
    else:
        yield "# means the same."
    rest = [left for left in translation.left if not left.matters]
    stated = [left for left in rest if not _is_default(left)]
    if stated:
        yield "# These are stated, have no counterpart, and are not known to change results:"
        for left in stated:
            yield f"#   {_left(left)}"
    if len(rest) > len(stated):
        yield f"# {len(rest) - len(stated)} more are defaults of options it does not have."


def _is_default(left: Left) -> bool:
    return left.source.raw.provenance.kind is ProvenanceKind.DEFAULT


def _left(left: Left) -> str:
    value = scalar(left.source.value)
    instead = "" if left.instead is None else f"; here it is {scalar(left.instead.value)}"
    return f"{left.source.field} = {value} ({_place(left.source)}){instead}"


def _origin(item: Written) -> str:
    places = "; ".join(dict.fromkeys(_place(source) for source in item.sources))
    return f"  # {places}" if places else ""


def _place(value: EffectiveValue) -> str:
    provenance = value.raw.provenance
    if provenance.kind is ProvenanceKind.DEFAULT:
        return f"{value.raw.key}, {provenance.source}"
    line = f":{provenance.line}" if provenance.line else ""
    return f"{value.raw.key}, {provenance.source}{line}"


def literal(value: ConfigLeaf) -> str:
    """Return a value as YAML 1.1, YAML 1.2 and Hydra read it alike.

    A float always has a point: PyYAML takes 1e-06 for a string.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        text = repr(value)
        mantissa, exponent, power = text.partition("e")
        return f"{mantissa}.0{exponent}{power}" if exponent and "." not in mantissa else text
    if isinstance(value, tuple):
        return "[" + ",".join(literal(item) for item in value) + "]"
    if isinstance(value, str) and not _is_plain(value):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _is_plain(text: str) -> bool:
    """Tell whether a string needs no quotes: a word or path that is nothing else in YAML."""
    words = text.replace("/", "").replace("-", "").replace("_", "").replace(".", "")
    special = ("true", "false", "null", "yes", "no", "on", "off", "none", "nan", "inf")
    return words.isalnum() and not text[0].isdigit() and text.lower() not in special


def _text(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines).rstrip("\n") + "\n"
