"""Two runs' rollouts under common step and text numbers.

Rows are paired by what they say, never by place: verl's V1 trainer sorts a dump by random uuid,
V0 by balanced length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from align.core.finding import Side
from dumps.store.rollout_index import Hashes, Int64, RolloutIndex


@dataclass(frozen=True, slots=True, eq=False)
class SideRows:
    """Some rows of one side. All arrays [n].

    ``prompt``, ``response``, ``ground_truth`` and ``question`` are numbers of texts, equal on both
    sides for equal texts, -1 for none; questions are prompts without role markers.
    """

    index: RolloutIndex
    row: Int64  # position in ``index``
    step: Int64
    prompt: Int64
    response: Int64
    ground_truth: Int64
    question: Int64

    def __len__(self) -> int:
        return len(self.row)

    @property
    def score(self) -> npt.NDArray[np.float64]:
        """Score of each row, NaN where it has none."""
        return self.index.score[self.row]

    @property
    def length(self) -> Int64:
        """Characters of each response."""
        return self.index.length[self.row]

    @property
    def flags(self) -> npt.NDArray[np.uint16]:
        """Bits of `ResponseFlag`."""
        return self.index.flags[self.row]

    def take(self, which: Int64 | npt.NDArray[np.bool_]) -> SideRows:
        """Return some of the rows."""
        return SideRows(
            self.index,
            self.row[which],
            self.step[which],
            self.prompt[which],
            self.response[which],
            self.ground_truth[which],
            self.question[which],
        )

    def by_question(self) -> SideRows:
        """Return the rows with questions in the place of prompts."""
        return replace(self, prompt=self.question)


@dataclass(frozen=True, slots=True, eq=False)
class RolloutPair:
    """Both runs' rows, sorted by step.

    ``steps_inferred`` names the side whose dump has no step; it was split in file order.
    """

    reference: SideRows
    candidate: SideRows
    steps_inferred: Side | None = None

    @property
    def common_steps(self) -> list[int]:
        """Steps that both sides have, ascending."""
        both = np.intersect1d(self.reference.step, self.candidate.step)
        return [int(step) for step in both if step >= 0]

    def by_question(self) -> RolloutPair:
        """Return the pair with questions in the place of prompts."""
        return RolloutPair(
            self.reference.by_question(), self.candidate.by_question(), self.steps_inferred
        )

    def by_step(self) -> Iterator[tuple[int, SideRows, SideRows]]:
        """Yield (step, reference rows, candidate rows) of each common step."""
        for step in self.common_steps:
            yield step, _of_step(self.reference, step), _of_step(self.candidate, step)


def pair_rollouts(reference: RolloutIndex, candidate: RolloutIndex) -> RolloutPair:
    """Number both sides' texts alike, and give steps to a side that has none where provable."""
    steps, inferred = _steps(reference, candidate)
    numbers = {
        name: _common_numbers(reference, candidate, name)
        for name in ("prompt", "response", "ground_truth", "question")
    }
    sides = []
    for i, index in enumerate((reference, candidate)):
        order = np.argsort(steps[i], kind="stable")
        texts = {name: numbers[name][i][order] for name in numbers}
        sides.append(SideRows(index, order, steps[i][order], **texts))
    return RolloutPair(sides[0], sides[1], inferred)


def group_size(rows: SideRows) -> int | None:
    """Return responses per prompt: the usual count, None unless half of the prompts have it."""
    if not len(rows):
        return None
    key = (rows.step + 1) * (rows.prompt.max() + 2) + rows.prompt
    counts = np.unique(key, return_counts=True)[1]
    sizes, num_prompts = np.unique(counts, return_counts=True)
    most = int(np.argmax(num_prompts))
    return int(sizes[most]) if num_prompts[most] * 2 >= len(counts) else None


def _of_step(rows: SideRows, step: int) -> SideRows:
    start, stop = np.searchsorted(rows.step, [step, step + 1])
    return rows.take(np.arange(start, stop))


def _common_numbers(
    reference: RolloutIndex, candidate: RolloutIndex, name: str
) -> tuple[Int64, Int64]:
    tables: tuple[Hashes, Hashes] = (
        getattr(reference, f"{name}s"),
        getattr(candidate, f"{name}s"),
    )
    both = np.union1d(*tables)
    shift = int(len(both) > 0 and both[0] == b"")  # "no text" is -1
    numbers = [np.searchsorted(both, table) - shift for table in tables]
    return numbers[0][getattr(reference, name)], numbers[1][getattr(candidate, name)]


def _steps(
    reference: RolloutIndex, candidate: RolloutIndex
) -> tuple[tuple[Int64, Int64], Side | None]:
    stepless = [(index.step < 0).all() for index in (reference, candidate)]
    if stepless == [False, True]:
        steps = _split_like(reference, candidate)
        return (reference.step, steps), Side.CANDIDATE if (steps >= 0).any() else None
    if stepless == [True, False]:
        steps = _split_like(candidate, reference)
        return (steps, candidate.step), Side.REFERENCE if (steps >= 0).any() else None
    return (reference.step, candidate.step), None


def _split_like(stepped: RolloutIndex, stepless: RolloutIndex) -> Int64:
    """Split a dump that was appended to for a whole run, in file order, as the other run's steps.

    Accepted only where the first piece holds exactly the prompts of the other run's first step,
    which no wrong split does by chance; otherwise every step stays -1.
    """
    steps, sizes = np.unique(stepped.step[stepped.step >= 0], return_counts=True)
    given = np.full(len(stepless), -1, np.int64)
    if not len(sizes) or len(stepless) < sizes[0]:
        return given
    first = stepped.prompts[stepped.prompt[stepped.step == steps[0]]]
    piece = stepless.prompts[stepless.prompt[: sizes[0]]]
    if np.array_equal(np.sort(first), np.sort(piece)):
        labels = np.repeat(steps, sizes)[: len(stepless)]
        given[: len(labels)] = labels
    return given
