"""The error of every compared address, in the order of computation, for the report."""

from __future__ import annotations

from align.core.figure import Column, Table
from align.core.text import Text
from align.layers.walk import Compared, Walk

_COLUMNS = (
    Column("order", Text("order", "次序"), numeric=True),
    Column("relative_error", Text("relative error", "相对误差"), numeric=True),
    Column("explained", Text("explained up to", "可解释的上限"), numeric=True),
    Column("gain", Text("candidate / reference", "被测 / 参考"), numeric=True),
    Column("cosine", Text("cosine", "余弦"), numeric=True),
    Column("phase", Text("phase", "阶段")),
    Column("module", Text("module or parameter", "模块或参数")),
)


def error_table(name: str, title: Text, walks: tuple[Walk, ...]) -> Table:
    """Return a row an address."""
    rows = [compared for walk in walks for compared in walk.compared]
    return Table(name, title, _COLUMNS, tuple(_row(i, row) for i, row in enumerate(rows)))


def _row(order: int, compared: Compared) -> tuple[int | float | str, ...]:
    found, record = compared.difference, compared.reference
    return (
        order,
        found.relative,
        compared.limit.value,
        found.gain,
        found.cosine,
        record.phase,
        record.name,
    )
