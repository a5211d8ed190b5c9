"""Which version a run is taken for, and which values another possible one would change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from align.config.resolve import Resolution
from align.core.config_value import ConfigValue, EffectiveValue, Provenance, ProvenanceKind
from align.core.text import Text, joined
from align.frameworks.config_table import ConfigTables

Stated = Mapping[str, ConfigValue]


def possible_versions(tables: ConfigTables, stated: Stated) -> tuple[tuple[str, ...], Text | None]:
    """Return the versions a run that states none can be of, the assumed one first, and a note."""
    fits = tables.versions(stated)
    if fits:
        others = ", ".join(fits[1:])
        fit_en = f", {others} fit its keys as well" if others else ": no other has these keys"
        fit_zh = f"；其键也符合 {others}" if others else "：其他版本没有这些键"
        return fits, Text(
            f"version {fits[0]} is assumed, as the run does not state it{fit_en}",
            f"假定版本为 {fits[0]}，因为该次运行未说明版本{fit_zh}",
        )
    guess = tables.version(stated)
    if guess is None:
        return (), None
    return (guess,), Text(
        f"version {guess} or later is assumed from the keys: the run does not state it",
        f"根据已有的键假定版本为 {guess} 或更高：该次运行未说明版本",
    )


def contradiction(tables: ConfigTables, stated: Stated, version: str) -> Text | None:
    """Return a note where no key set of the version a run states has the keys the run sets."""
    fits, name = tables.versions(stated), tables.version_name(version)
    if not fits or name is None or name in fits:
        return None
    others = ", ".join(fits)
    return Text(
        f"its keys are those of version {others}, not of {version}, which the run states",
        f"其键属于版本 {others}，而不是该次运行声明的 {version}",
    )


def resolve_as(
    tables: ConfigTables,
    stated: Stated,
    version: str | None,
    undetermined: Collection[str],
    *,
    with_defaults: bool,
) -> tuple[Resolution, Mapping[str, Text]]:
    """Resolve what is stated as one version does, and return why keys of it are not read.

    Args:
        tables: of the framework.
        stated: keys and values of the run's files.
        version: of the framework.
        undetermined: keys that are set to something unknown; neither they nor what lies below
            them take a default.
        with_defaults: whether what is not stated has the framework's default, or what its code
            does.
    """
    view = tables.view(stated, version)
    defaults = tables.defaults(view.values, version) if with_defaults else {}
    for key in (*undetermined, *_overlaid(tables, stated, version, undetermined)):
        defaults = {k: v for k, v in defaults.items() if k != key and not k.startswith(f"{key}.")}
    work = Resolution(tables, view.values, defaults)
    work.resolve()
    if with_defaults:
        work.add_fixed(version)
    return work, view.dead


def _overlaid(
    tables: ConfigTables, stated: Stated, version: str | None, undetermined: Collection[str]
) -> list[str]:
    """Return the keys the framework's own overlay makes of those set to something unknown."""
    nowhere = Provenance(ProvenanceKind.FILE, "")
    unknown = {k: ConfigValue(k, None, nowhere) for k in undetermined if k not in stated}
    view = tables.view({**stated, **unknown}, version).values if unknown else {}
    return [key for key, value in view.items() if value.provenance is nowhere]


def mark_version_dependent(
    values: Mapping[str, EffectiveValue],
    others: Sequence[Mapping[str, EffectiveValue]],
    note: Text,
) -> dict[str, EffectiveValue]:
    """Attach ``note`` to the values that another possible version would change."""
    marked = dict(values)
    for name, value in values.items():
        if any(name not in other or other[name].value != value.value for other in others):
            texts = [text for text in (value.assumption, note) if text is not None]
            marked[name] = replace(value, assumption=joined(texts))
    return marked
