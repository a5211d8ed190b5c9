"""What becomes of a step's rows after the sampler: verl's balance_batch, and the split over ranks.

The trainer reorders a batch of responses so that every data-parallel rank gets about as many
tokens, then cuts it into equal contiguous parts. Which rows a step holds does not change; which
rank and which mini-batch computes them does.

Source: verl `_balance_batch`, `karmarkar_karp` (the largest differencing method).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

_Part = tuple[int, int, list[tuple[int, int]]]
"""(sum of the loads, number of items, items as (position, load)): ordered as verl orders them."""


def split_over_ranks(rows: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Cut a batch into equal contiguous parts, one a data-parallel rank.

    Raises:
        ValueError: The rows cannot be cut into equal parts.
    """
    size, rest = divmod(len(rows), num_ranks)
    if rest:
        raise ValueError(f"{len(rows)} rows cannot be cut into {num_ranks} equal parts")
    return [list(rows[rank * size : (rank + 1) * size]) for rank in range(num_ranks)]


def balanced_order(
    lengths: Sequence[int], num_ranks: int, *, by_workload: bool = True
) -> list[int]:
    """Return the positions of a batch's rows after balance_batch.

    Args:
        lengths: tokens of prompt and response of each row.
        num_ranks: data-parallel ranks (verl up to 0.6: all ranks).
        by_workload: verl since 0.6.1 balances ``24576·n + n²`` and puts a rank's short rows at
            both ends; before it balanced tokens and kept a rank's rows in order.

    Raises:
        ValueError: The rows cannot be cut into equal parts.
    """
    if len(lengths) % num_ranks:
        raise ValueError(f"{len(lengths)} rows cannot be cut into {num_ranks} equal parts")
    loads = [24576 * n + n * n for n in lengths] if by_workload else list(lengths)
    order: list[int] = []
    for part in _partition(loads, num_ranks):
        rows = sorted(part, key=lambda row: (loads[row], row)) if by_workload else sorted(part)
        order += rows[::2] + rows[1::2][::-1] if by_workload else rows
    return order


@dataclass(slots=True)
class _Split:
    """Some items over all ranks, the heaviest rank first; the most uneven split comes first."""

    parts: list[_Part]

    def __lt__(self, other: _Split) -> bool:
        return (self._spread, self.parts[0]) > (other._spread, other.parts[0])

    @property
    def _spread(self) -> int:
        return self.parts[0][0] - self.parts[-1][0]

    def joined(self, other: _Split) -> _Split:
        """Put the other split's lightest part onto the heaviest one here, and so on."""
        pairs = zip(self.parts, reversed(other.parts), strict=True)
        parts = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs]
        return _Split(sorted(parts, reverse=True))


def _partition(loads: Sequence[int], num_ranks: int) -> list[list[int]]:
    ascending = sorted((load, row) for row, load in enumerate(loads))
    heap: list[_Split] = []
    for start in range(0, len(ascending), num_ranks):
        parts = [(load, 1, [(row, load)]) for load, row in ascending[start : start + num_ranks]]
        heapq.heappush(heap, _Split(sorted(parts, reverse=True)))
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, first.joined(second))
    return [[row for row, _ in part[2]] for part in heap[0].parts] if heap else []
