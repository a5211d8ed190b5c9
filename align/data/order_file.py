"""The order file: which rows each step is to see, for a replay in the other framework.

JSON Lines: a header, then ``{"step": 1, "rows": [8, 55, …]}`` for every step. Rows count from 0 in
the data set as it is on disk. The header names the data set by a hash of its rows' contents, so
that a replay can refuse another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from align.data.row_order import RowOrder

SCHEMA_VERSION = 1


def order_lines(
    order: RowOrder, first: int, last: int, header: Mapping[str, object]
) -> Iterator[str]:
    """Yield the file's lines for the steps ``first`` to ``last``, counted from 1."""
    yield _line({"kind": "row_order", "schema_version": SCHEMA_VERSION, **header})
    for step in range(first, last + 1):
        yield _line({"step": step, "rows": order.step(step).tolist()})


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"
