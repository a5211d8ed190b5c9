"""The same task and metric in both runs' results, with the error that its questions leave."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from align.core.evaluation import EvalResults, Score
from align.evals.average import paired_stderr, stderr_of

Z = 1.959964  # two-sided 95 % of the normal distribution


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What is published about a data set: its questions, and what guessing scores."""

    questions: int
    chance: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A score and its standard error from sampling questions; None where nothing tells it.

    Where single questions are recorded, it is the scatter of theirs. Without them and without a
    stated error it is sqrt(p (1 - p) / questions), the binomial one. The mean of k answers a
    question has no larger error, so this is an upper bound for avg@k.
    """

    score: Score
    source: str
    questions: int | None
    stderr: float | None


@dataclass(frozen=True, slots=True)
class EvalPair:
    """One task and metric on both sides."""

    reference: Measured
    candidate: Measured
    chance: float | None

    @property
    def name(self) -> str:
        """Task and metric."""
        return f"{self.reference.score.task} {self.reference.score.metric}"

    @property
    def difference(self) -> float:
        """Candidate less reference, in the metric's unit."""
        return self.candidate.score.value - self.reference.score.value

    @property
    def is_paired(self) -> bool:
        """Whether the difference is known question by question."""
        return self._paired is not None

    @property
    def _paired(self) -> float | None:
        ours, theirs = self.reference.score.answers, self.candidate.score.answers
        return None if ours is None or theirs is None else paired_stderr(ours, theirs)

    @property
    def stderr(self) -> float | None:
        """Standard error of the difference: of the same questions, else of independent ones."""
        paired = self._paired
        if paired is not None:
            return paired
        errors = (self.reference.stderr, self.candidate.stderr)
        if errors[0] is None or errors[1] is None:
            return None
        return math.hypot(*(e for e in errors if e is not None))


def pair_scores(
    reference: Iterable[EvalResults],
    candidate: Iterable[EvalResults],
    variants: tuple[str | None, str | None] = (None, None),
) -> tuple[list[EvalPair], list[str]]:
    """Pair scores by task and metric; return the names that are on one side only as well."""
    sides = [
        _by_name(_measured(results, variant))
        for results, variant in zip((reference, candidate), variants, strict=True)
    ]
    common = [key for key in sides[0] if key in sides[1]]
    pairs = [EvalPair(sides[0][key], sides[1][key], chance_of(key[0])) for key in common]
    return pairs, sorted(" ".join(key) for key in sides[0].keys() ^ sides[1].keys())


def _by_name(measured: Iterable[Measured]) -> dict[tuple[str, str], Measured]:
    """Keep one of each task and metric: what holds single questions, else the last."""
    found: dict[tuple[str, str], Measured] = {}
    for each in measured:
        key = each.score.task, each.score.metric
        known = found.get(key)
        if known is None or known.score.answers is None or each.score.answers is not None:
            found[key] = each
    return found


def variants_of(results: Iterable[EvalResults]) -> list[str]:
    """Return the devices or models that one side's tables hold rows of."""
    found = (score.variant for result in results for score in result.scores)
    return list(dict.fromkeys(variant for variant in found if variant is not None))


def chance_of(task: str) -> float | None:
    """Return what guessing scores, None where it is not known."""
    known = known_benchmark(task)
    return known.chance if known else None


def known_benchmark(task: str) -> Benchmark | None:
    """Look a task up, whatever its spelling: ``GPQA-Diamond`` is ``gpqa_diamond``."""
    words = re.sub(r"[^a-z0-9]", "", task.lower())
    if words in _benchmarks():
        return _benchmarks()[words]
    # every subject of these has four choices, too, but its own number of questions
    family = next((name for name in ("mmlu", "cmmlu", "ceval") if words.startswith(name)), None)
    if family is None:
        return None
    whole = _benchmarks()[family]
    return Benchmark(0, whole.chance, whole.source)


def _measured(results: Iterable[EvalResults], variant: str | None) -> Iterator[Measured]:
    for result in results:
        for score in result.scores:
            if variant is not None and score.variant not in (variant, None):
                continue
            known = known_benchmark(score.task)
            count = score.num_samples or (known.questions if known else None) or None
            yield Measured(score, result.source, count, _stderr(score, count))


def _stderr(score: Score, count: int | None) -> float | None:
    if score.answers is not None:
        return stderr_of(score.answers)
    if score.stderr is not None:
        return score.stderr
    if count is None or not score.is_share:
        return None
    p = score.value
    return math.sqrt(p * (1 - p) / count)


@cache
def _benchmarks() -> Mapping[str, Benchmark]:
    table = files("align.evals").joinpath("benchmarks.tsv").read_text(encoding="utf-8")
    return {
        row["task"]: Benchmark(
            int(row["questions"]), float(row["chance"]) if row["chance"] else None, row["source"]
        )
        for row in csv.DictReader(table.splitlines(), delimiter="\t")
    }
