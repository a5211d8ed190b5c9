"""The error of a mean of k answers a question (avg@k), alone and beside another model's.

Questions are drawn, and answers are drawn for each: the scatter of the questions' own means holds
both. Two models that answered the same questions share the questions' scatter, so that the error of
their difference is that of the differences question by question, which is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from align.core.evaluation import Answers
from align.core.threshold import Threshold

SAME_QUESTIONS = Threshold(
    0.95, source="one question in twenty left out moves a share by less than its own error"
)


def stderr_of(answers: Answers) -> float | None:
    """Return the standard error of avg@k; None of fewer than two questions.

    Source: s / sqrt(n) of the n questions' means, s^2 over n - 1. Its expectation is
    (var(p) + mean(p (1 - p)) / k) / n of shares p that are drawn with their questions and right in
    k independent answers each.
    """
    return _stderr(list(answers.of_questions.values()))


def answering_stderr(answers: Answers) -> float | None:
    """Return the part of that error which more answers to the same questions would take away.

    None where no question was answered twice. Source: sqrt(sum of s_i^2 / k_i) / n, s_i^2 the
    variance of question i's k_i answers, over k_i - 1; of once-answered questions the mean of the
    others' stands.
    """
    known = [_variance(v) for v in answers.scores.values() if len(v) > 1]
    if not known:
        return None
    typical = sum(known) / len(known)
    total = sum((_variance(v) if len(v) > 1 else typical) / len(v) for v in answers.scores.values())
    return math.sqrt(total) / len(answers.scores)


def paired_stderr(reference: Answers, candidate: Answers) -> float | None:
    """Return the standard error of the difference of two avg@k over the same questions.

    None where they did not answer the same ones. Both may have another k.
    """
    ours, theirs = reference.of_questions, candidate.of_questions
    common = ours.keys() & theirs.keys()
    if len(common) < SAME_QUESTIONS.value * max(len(ours), len(theirs)):
        return None
    return _stderr([theirs[question] - ours[question] for question in sorted(common)])


def _stderr(values: Sequence[float]) -> float | None:
    return math.sqrt(_variance(values) / len(values)) if len(values) > 1 else None


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
