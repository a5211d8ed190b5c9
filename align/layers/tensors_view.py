"""Add to a rung's result what only whole tensors show."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from align.core.rung import RungResult
from align.core.text import Text
from align.layers.tensors_affected import affected_text
from align.layers.tensors_grid import error_grid
from align.layers.tensors_pair import whole_pairs
from align.layers.tensors_table import exact_table, head_dim_of
from align.layers.walk import Compared
from dumps.store.run_data import RunData


def with_tensors(
    result: RungResult,
    departure: Compared | None,
    reference: RunData,
    candidate: RunData,
    step: int,
    phases: Collection[str],
) -> RungResult:
    """Add exact measures of all, and show which tokens and features of the departure differ.

    Args:
        departure: which the result's first finding is about; None where it is about none.
        phases: the rung's own.
    """
    found = whole_pairs(reference, candidate, step)
    pairs = {address: pair for address, pair in found.items() if address[1] in phases}
    if not pairs:
        return result
    result = replace(result, tables=(*result.tables, *exact_table(result.name, pairs)))
    if departure is None or not result.findings or not departure.is_large:
        return result
    record = departure.reference
    pair = pairs.get((record.name, record.phase, record.update))
    if pair is None:
        return result
    limit, head_dim = departure.limit.value, head_dim_of(reference, candidate)
    said, grid = affected_text(pair, limit, head_dim), error_grid(pair, limit, head_dim)
    first, *others = result.findings
    why = Text(f"{first.why.en}{said.en}", f"{first.why.zh}{said.zh}")
    grids = () if grid is None else (grid,)
    return replace(result, findings=(replace(first, why=why), *others), grids=grids)
