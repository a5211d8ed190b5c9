"""Results of benchmarks: one score a task and metric, with what is needed to judge a difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Answers:
    """The scores of every answer: question -> one score an answer, at least one each."""

    scores: Mapping[str, tuple[float, ...]]

    @property
    def of_questions(self) -> dict[str, float]:
        """The mean of each question's answers."""
        return {question: sum(v) / len(v) for question, v in self.scores.items()}

    @property
    def mean(self) -> float:
        """avg@k: the mean over questions."""
        means = self.of_questions.values()
        return sum(means) / len(means)


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of one task.

    Args:
        task: name as the tool writes it, lower case.
        metric: "acc", "exact_match", "score" …, lower case.
        value: a share in [0, 1] where ``is_share``, else in the metric's own unit.
        stderr: standard error as the tool states it, in the unit of ``value``.
        num_samples: questions; None where not stated.
        repeats: answers a question that were averaged (avg@k).
        group: task this one is a part of, None where it stands for itself.
        variant: device or model of the row where one table holds several.
        line: 1-based line of the file, None where it has none.
        answers: of single questions, None where the file holds the mean alone.
    """

    task: str
    metric: str
    value: float
    is_share: bool = True
    higher_is_better: bool = True
    stderr: float | None = None
    num_samples: int | None = None
    repeats: int = 1
    group: str | None = None
    variant: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    line: int | None = None
    answers: Answers | None = None


@dataclass(frozen=True, slots=True)
class EvalResults:
    """The scores of one file; ``num_unread`` rows or entries held no score that can be used."""

    source: str
    format: str
    scores: tuple[Score, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    num_unread: int = 0
