"""Two paired rows side by side, a line a token: id, string, role, position, mask, label."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Indel

from align.core.figure import Cell, Column, Table
from align.core.finding import Scalar
from align.core.text import Text
from align.rollout.token_pairs import RowPair
from align.rollout.token_row import IGNORED, Role, TokenRow, roles

ROLES = {
    Role.PROMPT: Text("prompt", "prompt"),
    Role.RESPONSE: Text("response", "回复"),
    Role.EOS: Text("eos", "eos"),
    Role.PAD: Text("pad", "pad"),
}
_CONTEXT = 6
_SIDES = (("reference", Text("ref", "参考")), ("candidate", Text("cand", "被测")))
_FIELDS = (
    ("column", Text("col", "列"), True),
    ("id", Text("id", "id"), True),
    ("token", Text("token", "token"), False),
    ("role", Text("role", "角色"), False),
    ("position", Text("pos", "位置"), True),
    ("mask", Text("mask", "mask"), True),
    ("label", Text("label", "label"), True),
)
NUM_FIELDS = len(_FIELDS)

Spell = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class _Line:
    reference: int | None  # column
    candidate: int | None
    differs: bool


def pair_table(
    pair: RowPair, spell: tuple[Spell | None, Spell | None], stops: frozenset[int], *, whole: bool
) -> Table:
    """Lay two rows side by side, equal tokens on one line.

    Args:
        spell: id to string, of each side; None where the tokenizer is not known.
        whole: every line, not only those around a difference.
    """
    sides = (pair.reference, pair.candidate)
    cells = [_cells(row, each, stops) for row, each in zip(sides, spell, strict=True)]
    lines = list(_lines(pair, cells))
    shown = lines if whole else _around(lines)
    nothing: tuple[Cell, ...] = (None,) * len(_FIELDS)
    rows: list[tuple[Cell, ...]] = []
    for line in shown:
        if line is None:
            rows.append((*("…" for _ in nothing), *("…" for _ in nothing), None))
            continue
        ours = nothing if line.reference is None else cells[0][line.reference]
        theirs = nothing if line.candidate is None else cells[1][line.candidate]
        rows.append((*ours, *theirs, "≠" if line.differs else None))
    return Table(
        id="tokens.row",
        title=Text(
            f"{pair.reference.name} of the reference, {pair.candidate.name} of the candidate",
            f"参考 {pair.reference.name} 与被测 {pair.candidate.name}",
        ),
        columns=(
            *(
                Column(
                    f"{key}_{name}",
                    Text(f"{side.en}\n{title.en}", f"{side.zh}\n{title.zh}"),
                    number,
                )
                for key, side in _SIDES
                for name, title, number in _FIELDS
            ),
            Column("differs", Text("", "")),
        ),
        rows=tuple(rows),
    )


def _cells(row: TokenRow, spell: Spell | None, stops: frozenset[int]) -> list[tuple[Cell, ...]]:
    """Return the cells of every column; where nothing is attended the token is not spelled."""
    made: list[tuple[Cell, ...]] = []
    for column, role in enumerate(roles(row, stops)):
        number = int(row.ids[column])
        label = _at(row.labels, column)
        made.append(
            (
                column,
                number,
                None if spell is None or role is Role.PAD else spell(number),
                ROLES[role],
                _at(row.positions, column),
                _at(row.mask, column),
                None if label == IGNORED else label,
            )
        )
    return made


def _at(values: np.ndarray | None, column: int) -> Scalar:  # type: ignore[type-arg]
    return None if values is None else int(values[column])


def _lines(pair: RowPair, cells: Sequence[Sequence[tuple[Cell, ...]]]) -> Iterator[_Line]:
    """Align the attended tokens; padding before them and after is shown once, at its end."""
    ours, theirs = pair.reference.columns, pair.candidate.columns
    for code in Indel.opcodes(pair.reference.tokens, pair.candidate.tokens):
        mine = ours[code.src_start : code.src_end].tolist()
        other = theirs[code.dest_start : code.dest_end].tolist()
        for place in range(max(len(mine), len(other))):
            a = mine[place] if place < len(mine) else None
            b = other[place] if place < len(other) else None
            yield _Line(a, b, code.tag != "equal" or _unequal(cells, a, b))
    after = [_padding_after(row) for row in (pair.reference, pair.candidate)]
    if after != [None, None]:
        yield _Line(after[0], after[1], False)


def _padding_after(row: TokenRow) -> int | None:
    column = int(row.columns[-1]) + 1 if len(row.columns) else 0
    return column if column < len(row.ids) else None


def _unequal(cells: Sequence[Sequence[tuple[Cell, ...]]], a: int | None, b: int | None) -> bool:
    """Tell whether role, mask or label of one token differ; columns and positions may."""
    assert a is not None and b is not None
    ours, theirs = cells[0][a], cells[1][b]
    return ours[3] != theirs[3] or any(
        ours[i] != theirs[i] and None not in (ours[i], theirs[i]) for i in (5,)
    )


def _around(lines: Sequence[_Line]) -> list[_Line | None]:
    """Keep the lines around differences; without any, those around the end of the prompt."""
    marked = [number for number, line in enumerate(lines) if line.differs] or [len(lines) - 1]
    kept = {
        number
        for place in marked[: 8 * _CONTEXT]
        for number in range(place - _CONTEXT, place + _CONTEXT + 1)
    }
    shown: list[_Line | None] = []
    for number, line in enumerate(lines):
        if number in kept:
            shown.append(line)
        elif (shown and shown[-1] is not None) or not shown:
            shown.append(None)
    return shown
