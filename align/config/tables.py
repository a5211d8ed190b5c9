"""What the report shows of two configurations besides findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from align.config.diff import Compared, ConfigDiff, scalar
from align.config.spelling import nearest
from align.core.config_value import (
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    ProvenanceKind,
)
from align.core.figure import Cell, Column, Table
from align.core.finding import Severity, Side
from align.core.text import Text

_FIELD = Column("field", Text("field", "字段"))
_REFERENCE = Column("reference", Text("reference", "参考"))
_CANDIDATE = Column("candidate", Text("candidate", "被测"))
_SIDE = Column("side", Text("side", "一侧"))
_KEY = Column("key", Text("key", "键"))
_VALUE = Column("value", Text("value", "值"))
_PLACE = Column("place", Text("found in", "来源"))
_WHY = Column("why", Text("why", "原因"))

_SIDES = {
    Side.REFERENCE: Text("reference", "参考"),
    Side.CANDIDATE: Text("candidate", "被测"),
}
_SEVERITIES = {
    Severity.ERROR: Text("error", "错误"),
    Severity.WARNING: Text("warning", "警告"),
    Severity.INFO: Text("info", "提示"),
}

Stated = Mapping[str, ConfigValue]


def compared_table(diff: ConfigDiff) -> Table:
    """Return every compared field, what differs first, the most severe on top."""
    return Table(
        "config.compared",
        Text("Effective values", "有效值"),
        (
            _FIELD,
            Column("same", Text("same", "是否相同")),
            Column("severity", Text("severity", "级别")),
            _REFERENCE,
            _CANDIDATE,
            Column("reference_place", Text("reference: key and place", "参考：键与来源")),
            Column("candidate_place", Text("candidate: key and place", "被测：键与来源")),
        ),
        tuple(_compared_row(row) for row in sorted(diff.compared, key=_rank)),
    )


def one_sided_table(diff: ConfigDiff) -> Table:
    """Return the fields that only one side states or that two frameworks mean differently."""
    return Table(
        "config.one_sided",
        Text("Known on one side only, or not comparable", "仅一侧可知，或无法比较"),
        (_FIELD, _SIDE, _VALUE, _PLACE),
        tuple(
            (value.field, _SIDES[side], scalar(value.value), place(value))
            for side, value in diff.one_sided
        ),
    )


def unmatched_table(reference: EffectiveConfig, candidate: EffectiveConfig) -> Table:
    """Return the keys no table knows, with the nearest one that is known."""
    rows: list[tuple[Cell, ...]] = []
    for side, config in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate)):
        for value in config.unmatched:
            near = nearest(config.framework, value.key)
            where = f"{value.provenance.source}:{value.provenance.line or '?'}"
            rows.append(
                (value.key, _SIDES[side], scalar(value.value), near.key if near else None, where)
            )
    return Table(
        "config.unmatched",
        Text("Keys in no table", "未知的键"),
        (
            _KEY,
            _SIDE,
            _VALUE,
            Column("nearest", Text("nearest known key", "最接近的已知键")),
            _PLACE,
        ),
        tuple(rows),
    )


def ignored_table(
    reference: EffectiveConfig, candidate: EffectiveConfig, stated: tuple[Stated, Stated]
) -> Table:
    """Return the keys that differ and are known not to touch numbers, with the reason."""
    reasons = {**candidate.ignored, **reference.ignored}
    rows: list[tuple[Cell, ...]] = []
    for key in sorted(reasons):
        first, second = (side[key].value if key in side else None for side in stated)
        if first != second and all(key in side for side in stated):
            rows.append((key, scalar(first), scalar(second), reasons[key]))
    return Table(
        "config.ignored",
        Text("Differ without touching numbers", "不同但不影响数值"),
        (_KEY, _REFERENCE, _CANDIDATE, _WHY),
        tuple(rows),
    )


def place(value: EffectiveValue) -> Cell:
    """Return key, file and line of a value, or how it came about."""
    provenance = value.raw.provenance
    if provenance.kind is ProvenanceKind.DEFAULT:
        version = provenance.source.removeprefix("default of ")
        key = value.raw.key
        return Text(f"{key} (default of {version})", f"{key}（{version} 的默认值）")
    if provenance.kind is ProvenanceKind.FIXED:
        source = provenance.source.removeprefix("code of ")
        return Text(
            f"no key: the code of {source} ({provenance.text})",
            f"无对应的键：由 {source} 的代码决定（{provenance.text}）",
        )
    where = f"{provenance.source}:{provenance.line}" if provenance.line else provenance.source
    return f"{value.raw.key} ({where})"


def _compared_row(row: Compared) -> tuple[Cell, ...]:
    return (
        row.name,
        "=" if row.same else "≠",
        _SEVERITIES[row.finding.severity] if row.finding else None,
        scalar(row.reference.value),
        scalar(row.candidate.value),
        place(row.reference),
        place(row.candidate),
    )


def _rank(row: Compared) -> tuple[bool, int, str]:
    return row.same, row.finding.severity.rank if row.finding else 3, row.name


def tables(items: Iterable[Table]) -> tuple[Table, ...]:
    """Return the tables that have rows."""
    return tuple(table for table in items if table.rows)
