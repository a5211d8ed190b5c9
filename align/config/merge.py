"""Several files of one run, merged key by key: the strongest provenance counts."""

from __future__ import annotations

from collections.abc import Iterable

from align.core.config_value import ConfigLeaf, ConfigValue, ProvenanceKind, RawConfig
from align.core.text import Text

_ORDER = list(ProvenanceKind)


def strongest(configs: Iterable[RawConfig]) -> tuple[dict[str, ConfigValue], list[Text]]:
    """Merge files; report keys to which two equally strong files give different values."""
    merged: dict[str, ConfigValue] = {}
    conflicts: list[str] = []
    notes: list[Text] = []
    for config in configs:
        notes += config.notes
        for key, value in config.values.items():
            if _unresolved(value.value):
                continue
            known = merged.get(key)
            if known is None or rank(value) < rank(known):
                merged[key] = value
            elif rank(value) == rank(known) and value.value != known.value:
                conflicts.append(f"{key} ({known.provenance.source}, {value.provenance.source})")
    if conflicts:
        shown = ", ".join(conflicts[:3]) + (" …" if len(conflicts) > 3 else "")
        notes.append(
            Text(
                f"{len(conflicts)} keys have two values; the first file counts: {shown}",
                f"{len(conflicts)} 个键有两个取值；以第一个文件为准：{shown}",
            )
        )
    return merged, notes


def undetermined(configs: Iterable[RawConfig]) -> set[str]:
    """Return the keys that are set, but to something the files do not tell."""
    return {
        key
        for config in configs
        for key in (*config.unknown, *(k for k, v in config.values.items() if _unresolved(v.value)))
    }


def rank(value: ConfigValue) -> int:
    """Return 0 for the strongest provenance."""
    return _ORDER.index(value.provenance.kind)


def _unresolved(value: ConfigLeaf) -> bool:
    return isinstance(value, str) and "${" in value
