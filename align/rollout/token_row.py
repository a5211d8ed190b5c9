"""One row of token ids as a dump has it, and the rows of a batch, whatever its layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Ids = tuple[int, ...]

IGNORED = -100
"""The label at which no loss is taken."""


class Role(str, Enum):
    """What a column holds."""

    PROMPT = "prompt"
    RESPONSE = "response"
    EOS = "eos"
    PAD = "pad"


@dataclass(frozen=True, eq=False)
class TokenRow:
    """One sequence; s columns.

    Args:
        source: file it comes from.
        row: 0-based row of the batch, or segment of a packed one.
        step: training step; None where not recorded.
        ids: int64 [s], padding included.
        attended: bool [s], False at padding.
        positions: int64 [s]; None where not recorded or of several axes.
        mask: int64 [s], 1 where the loss is taken; None where not recorded.
        labels: int64 [s], `IGNORED` where no loss is taken; None where not recorded.
        split: first column of the response; None where nothing tells.
        line: 1-based line of a dump that has one a row.
        stopped: whether the engine ended by itself, not at a limit; None where not recorded.
        mask_start: column at which the recorded mask begins.
        padding_known: whether ``attended`` was recorded rather than inferred.
    """

    source: str
    row: int
    step: int | None
    ids: Int64
    attended: Bool
    positions: Int64 | None = None
    mask: Int64 | None = None
    labels: Int64 | None = None
    split: int | None = None
    line: int | None = None
    stopped: bool | None = None
    mask_start: int = 0
    padding_known: bool = True
    prompt_text: str | None = None
    response_text: str | None = None

    @cached_property
    def prompt(self) -> Ids:
        """Attended ids before the response; all of them where the split is not known."""
        return self._attended(slice(None, self.split))

    @cached_property
    def response(self) -> Ids:
        """Attended ids of the response; none where the split is not known."""
        return () if self.split is None else self._attended(slice(self.split, None))

    @cached_property
    def tokens(self) -> Ids:
        """Every attended id."""
        return self._attended(slice(None))

    @cached_property
    def columns(self) -> Int64:
        """Columns of ``tokens``."""
        return np.flatnonzero(self.attended)

    @property
    def name(self) -> str:
        """The row as messages call it."""
        return f"line {self.line}" if self.line is not None else f"row {self.row}"

    def _attended(self, columns: slice) -> Ids:
        return tuple(self.ids[columns][self.attended[columns]].tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Sequences laid end to end in one row.

    Args:
        ids: int64 [t].
        boundaries: int64 [n + 1], cumulated lengths as recorded.
        restarts: int64, the tokens at which positions begin anew; None where there are none.
    """

    source: str
    step: int | None
    ids: Int64
    boundaries: Int64
    restarts: Int64 | None


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The rows of one dump at one step, in its own order.

    Args:
        packed: how they were laid end to end; None for a batch with a row each.
        problems: what could not be used, and why.
    """

    source: str
    step: int | None
    rows: Sequence[TokenRow]
    packed: Packed | None = None
    problems: tuple[str, ...] = ()
    trajectories: Sequence[tuple[str, int]] | None = field(default=None)


def roles(row: TokenRow, stops: frozenset[int]) -> Iterator[Role]:
    """Yield the role of every column; a response's last token is eos if a model stops at it."""
    last = int(row.columns[-1]) if len(row.columns) else -1
    for column, attended in enumerate(row.attended.tolist()):
        if not attended:
            yield Role.PAD
        elif row.split is None or column < row.split:
            yield Role.PROMPT
        elif column == last and int(row.ids[column]) in stops:
            yield Role.EOS
        else:
            yield Role.RESPONSE


def likely_stops(rows: Sequence[TokenRow], special: frozenset[int] | None = None) -> frozenset[int]:
    """Infer at which ids the model stops.

    An id that ends the responses which the engine says stopped; else one that ends at least two
    responses and stands inside none, as an end token does and a word does not.

    Args:
        special: the tokenizer's special tokens, of which an end is one; None where not known.
    """
    stated = {row.response[-1] for row in rows if row.stopped and row.response}
    if stated:
        return frozenset(stated)
    ends: dict[int, int] = {}
    inside: set[int] = set()
    for row in rows:
        if row.response:
            ends[row.response[-1]] = ends.get(row.response[-1], 0) + 1
            inside.update(row.response[:-1])
    if special is not None:
        return special & ends.keys()
    return frozenset(i for i, count in ends.items() if count > 1 and i not in inside)
