"""Tables of scores: OpenCompass's summary, AISBench's Markdown, and plain CSV.

A column names the data set; scores stand in a column of that name or, as OpenCompass writes them,
in one column a model. ``95@repeat4`` is the mean of four answers a question; a score above 1 is in
percent; ``-`` is no score. A task's category stands in a column of that name, or in the row of
dashes above it (``--------- Reasoning ---------``), as OpenCompass heads its parts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from align.core.errors import DumpError
from align.core.evaluation import EvalResults, Score
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

FORMAT = "evals_table"

_TASK = ("dataset", "task", "benchmark", "data set", "数据集")
_SCORE = ("score", "accuracy", "acc", "value", "得分", "评分", "精度")
_ERROR = ("stderr", "standard error", "se")
_COUNT = ("num", "n", "samples", "num_samples", "count", "样本数")
_VARIANT = ("hardware", "device", "model", "note", "platform", "设备")
_METRIC = ("metric",)
_GROUP = ("category", "group", "capability", "domain", "类别", "分类", "能力", "领域")
_MODE = ("mode", "version")
_HEADING = re.compile(r"-{3,}\s*([^\s-].*?)\s*-{3,}$")
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*(%?)(?:\s*@\s*(?:repeat|avg|k=?)?(\d+))?$")
_AVERAGED = re.compile(r"(?:avg|mean)@(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    cells: dict[str, str]
    heading: str | None  # category of the rows below it


def _sniff(glimpse: Glimpse) -> bool:
    header = _header(glimpse.head.decode("utf-8-sig", "replace").splitlines()[:40])
    return header is not None


def read_evals_table(path: Path, progress: Progress = no_progress) -> EvalResults:
    """Read every row that has a data set and at least one score.

    Raises:
        DumpError: No table with a column of data sets and one of scores.
    """
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    progress(sum(map(len, lines)))
    start = _header(lines)
    if start is None:
        raise DumpError(
            where=str(path),
            problem="holds no table of scores",
            fix="give a table with the columns dataset and score",
        )
    scores: list[Score] = []
    num_unread = 0
    for row in _rows(lines, start):
        found = list(_scores(row))
        num_unread += not found
        scores += found
    return EvalResults(str(path), FORMAT, tuple(scores), num_unread=num_unread)


def _header(lines: Sequence[str]) -> int | None:
    """Return the line of the header, None where no line names data sets and scores."""
    for number, line in enumerate(lines):
        names = [name.lower() for name in _cells(line)]
        if len(names) > 1 and any(n in _TASK for n in names):
            named = any(n in _SCORE for n in names)
            by_model = {"metric", "mode"} <= set(names) and len(names) > 4
            if named or by_model:
                return number
    return None


def _cells(line: str) -> list[str]:
    if line.lstrip().startswith("|"):
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    return [cell.strip() for cell in next(csv.reader([line]), [])]


def _rows(lines: Sequence[str], start: int) -> Iterator[_Row]:
    names = [name.lower() for name in _cells(lines[start])]
    heading = None
    for number, line in enumerate(lines[start + 1 :], start + 2):
        cells = _cells(line)
        head = _HEADING.match(cells[0]) if cells else None
        if head is not None:
            heading = head[1].lower()
            continue
        if not line.strip() or all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            continue
        if len(cells) < len(names):
            return  # the table ends
        yield _Row(number, dict(zip(names, cells, strict=False)), heading)


def _scores(row: _Row) -> Iterator[Score]:
    task = _first(row, _TASK)
    if not task:
        return
    named = [n for n in row.cells if n in _SCORE]
    known = {*_TASK, *_ERROR, *_COUNT, *_METRIC, *_MODE, *_SCORE, *_GROUP}
    by_model = [n for n in row.cells if n not in known] if not named else []
    for column in named or by_model:
        match = _NUMBER.match(row.cells[column])
        if match is not None:
            yield _score(row, task, match, column if by_model else _first(row, _VARIANT))


def _score(row: _Row, task: str, match: re.Match[str], variant: str | None) -> Score:
    raw, percent, repeats = float(match[1]), bool(match[2]), match[3]
    scale = 100.0 if percent or raw > 1 else 1.0
    error, count = _number(_first(row, _ERROR)), _number(_first(row, _COUNT))
    averaged = _AVERAGED.search(f"{_first(row, _METRIC) or ''} {task}")
    known = {*_TASK, *_SCORE, *_ERROR, *_COUNT, *_VARIANT, *_METRIC, *_MODE, *_GROUP}
    group = _first(row, _GROUP)
    stated = _first(row, _VARIANT) == variant
    return Score(
        task=task.lower(),
        metric=(_first(row, _METRIC) or "score").lower(),
        value=raw / scale,
        stderr=None if error is None else error / scale,
        num_samples=None if count is None else int(count),
        repeats=int(repeats or (averaged[1] if averaged else 1)),
        group=row.heading if group is None else group.lower(),
        variant=variant,
        settings={
            name: cell
            for name, cell in row.cells.items()
            if stated and name not in known and cell not in ("", "-")
        },
        line=row.line,
    )


def _first(row: _Row, names: Sequence[str]) -> str | None:
    return next((row.cells[n] for n in names if row.cells.get(n) not in (None, "", "-")), None)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


READER = Reader(FORMAT, ArtifactKind.EVALS, _sniff, read_evals_table, priority=-5)
