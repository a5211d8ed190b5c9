"""Module paths of two msprobe dumps under common names: wrappers taken off, Megatron's renamed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

from align.layout.recognise_names import framework_of, unwrapped

_LAYER = re.compile(r"(?:decoder\.)?layers\.(\d+)(?:\.(.+))?")
_WEIGHT = re.compile(r"\.(weight|bias)$")
_HALF = 0.5


def common_names(
    reference: Iterable[str], candidate: Iterable[str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the name by which each module path of either side is compared.

    Hugging Face's spelling is the common one. A prefix that one side alone has in front of most of
    its paths, such as a wrapper's, is taken off.
    """
    ours, theirs = (
        {path: canonical_path(path) for path in side} for side in (reference, candidate)
    )
    shared = set(ours.values()) & set(theirs.values())
    if len(shared) < _HALF * min(len(ours), len(theirs)):
        ours, theirs = _without_prefix(ours, theirs), _without_prefix(theirs, ours)
    return ours, theirs


def canonical_path(path: str) -> str:
    """Return a module's Hugging Face path; one that no family knows is left as it is."""
    plain = unwrapped(path)
    # a list of models is dumped as Module.{index}.{path}
    listed = re.match(r"\d+\.(?=(module|model|decoder|embedding|output_layer)\.)", plain)
    plain = unwrapped(plain[listed.end() :]) if listed else plain
    if framework_of([f"{plain}."]) != "megatron" and not plain.startswith("layers."):
        return plain
    found = _LAYER.fullmatch(plain)
    if found is None:
        return _megatron_names().get(plain, plain)
    if found[2] is None:
        return f"model.layers.{found[1]}"
    inner = _megatron_names().get(found[2])
    return plain if inner is None else f"model.layers.{found[1]}.{inner}"


@cache
def _megatron_names() -> Mapping[str, str]:
    """Return the modules that Megatron only renames; fused ones hold several and are left out."""
    from align.layout.family import families

    names = {"embedding": "model.embed_tokens"}
    for family in families():
        names |= dict(family.modules)
        for rule in family.rules:
            for dialect, form in rule.forms.items():
                if dialect.startswith("megatron") and len(rule.parts) == 1:
                    names[_module(form.name)] = _module(rule.parts[0].name)
    return {theirs.rstrip("."): ours.rstrip(".") for theirs, ours in names.items()}


def _module(name: str) -> str:
    return _WEIGHT.sub("", name)


def _without_prefix(names: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Take off the prefix after which most names are the other side's too."""
    known = set(others.values())
    prefixes: Counter[str] = Counter()
    for name in names.values():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            if ".".join(parts[depth:]) in known:
                prefixes[".".join(parts[:depth]) + "."] += 1
    plain = sum(name in known for name in names.values())
    prefix, count = next(iter(prefixes.most_common(1)), ("", 0))
    if count <= plain:
        return dict(names)
    return {path: name.removeprefix(prefix) for path, name in names.items()}
