"""Rollout rows: what was asked, what was answered, what it scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

from align.core.finding import Scalar
from align.core.metric import Skipped


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One response. A field that the dump does not have is None, never a made-up value."""

    prompt: str | None
    response: str
    score: float | None
    step: int | None
    ground_truth: str | None
    uid: str | None
    line: int
    extras: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch:
    """Consecutive rows of one dump, column by column.

    Args:
        source: file the rows come from.
        format: name of the reader.
        prompts: [n], None where the dump has no prompt.
        responses: [n].
        scores: float64 [n], NaN where a row has none; None where the dump has no score.
        steps: int64 [n], -1 where a row has none; None where the dump has no step.
        ground_truths, uids: [n] or None where the dump has no such field.
        extras: further fields as the dump spells them, [n] each.
        lines: int64 [n], 1-based.
        absent: names of the fields above that the dump does not have.
        skipped: lines that hold no row, the first 100 of the batch; ``num_skipped`` counts all.
        notes: what was assumed, such as a step taken from the file name.
    """

    source: str
    format: str
    prompts: Sequence[str] | None
    responses: Sequence[str]
    scores: npt.NDArray[np.float64] | None
    steps: npt.NDArray[np.int64] | None
    ground_truths: Sequence[str | None] | None
    uids: Sequence[str | None] | None
    extras: Mapping[str, Sequence[Scalar]]
    lines: npt.NDArray[np.int64]
    absent: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    num_skipped: int = 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.responses)

    def rows(self) -> Iterator[RolloutRow]:
        """Yield the rows one by one; for display and tests, not for bulk work."""
        for i, response in enumerate(self.responses):
            score = None if self.scores is None else float(self.scores[i])
            step = None if self.steps is None or self.steps[i] < 0 else int(self.steps[i])
            yield RolloutRow(
                prompt=None if self.prompts is None else self.prompts[i],
                response=response,
                score=None if score is None or score != score else score,
                step=step,
                ground_truth=None if self.ground_truths is None else self.ground_truths[i],
                uid=None if self.uids is None else self.uids[i],
                line=int(self.lines[i]),
                extras={key: column[i] for key, column in self.extras.items()},
            )
