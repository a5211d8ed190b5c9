"""Scores of single answers, gathered into one score a task and metric: avg@k."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from align.core.errors import DumpError
from align.core.evaluation import Answers, EvalResults, Score


@dataclass(frozen=True, slots=True)
class Answered:
    """How one answer to one question was scored.

    Args:
        part: subset of the task that the question belongs to; None where none is named.
    """

    task: str
    metric: str
    question: str
    value: float
    part: str | None = None


def results_of(
    path: Path, form: str, rows: Iterable[Sequence[Answered]], *, problem: str, fix: str
) -> EvalResults:
    """Return the scores of a file's answers.

    Args:
        form: of the file, as its reader is named.
        rows: the answers of each of its rows; none of one that could not be read.
        problem, fix: where no row has any.

    Raises:
        DumpError: No row has an answer.
    """
    answers: list[Answered] = []
    num_unread = 0
    for row in rows:
        num_unread += not row
        answers += row
    if not answers:
        raise DumpError(where=str(path), problem=problem, fix=fix)
    return EvalResults(str(path), form, scores_of(answers), num_unread=num_unread)


def scores_of(answers: Iterable[Answered]) -> tuple[Score, ...]:
    """Average the answers of each task and metric, and of each part where a task has several.

    The mean is over questions, each the mean of its answers, so that a question that was answered
    more often weighs no more.
    """
    gathered: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    parts: dict[str, set[str]] = defaultdict(set)
    kept = list(answers)
    for answer in kept:
        gathered[answer.task, answer.metric][answer.question].append(answer.value)
        parts[answer.task] |= {answer.part} if answer.part is not None else set()
    groups = {}
    for answer in kept:
        if len(parts[answer.task]) > 1 and answer.part is not None:
            name = f"{answer.task}:{answer.part}"
            gathered[name, answer.metric][answer.question].append(answer.value)
            groups[name] = answer.task
    return tuple(
        _score(task, metric, of, groups.get(task)) for (task, metric), of in gathered.items()
    )


def as_number(value: object) -> float | None:
    """Return a score as a number: true and false are 1 and 0; None for anything else."""
    return float(value) if isinstance(value, bool | int | float) else None


def _score(task: str, metric: str, of: dict[str, list[float]], group: str | None) -> Score:
    answers = Answers({question: tuple(values) for question, values in of.items()})
    return Score(
        task=task,
        metric=metric,
        value=answers.mean,
        is_share=all(0 <= v <= 1 for values in answers.scores.values() for v in values),
        num_samples=len(answers.scores),
        repeats=max(len(values) for values in answers.scores.values()),
        group=group,
        answers=answers,
    )
