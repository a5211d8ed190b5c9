"""Is each prompt answered n times, as often as the run's own configuration says?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.core.finding import Side
from dumps.store.rollout_pair import SideRows, group_size


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Prompts of one run that have another number of responses than is usual in it.

    Args:
        usual: responses to most prompts.
        num_prompts, num_groups: prompts with another number; all, the last step left out.
        step: of the first such prompt.
        size: its number of responses.
        position: of its first row in the side's rows.
    """

    side: Side
    usual: int
    num_prompts: int
    num_groups: int
    step: int
    size: int
    position: int


def incomplete_groups(side: Side, rows: SideRows) -> Incomplete | None:
    """Find prompts whose number of responses is no multiple of the usual one.

    A data set that has a question twice gives whole multiples. The last step may have been cut
    off, and a dump with unreadable lines lacks rows by itself.
    """
    usual = group_size(rows)
    if usual is None or rows.index.num_skipped or not len(rows):
        return None
    whole = np.flatnonzero((rows.step >= 0) & (rows.prompt >= 0) & (rows.step < rows.step.max()))
    if not len(whole):
        return None
    key = rows.step[whole] * (rows.prompt.max() + 1) + rows.prompt[whole]
    _, first, counts = np.unique(key, return_index=True, return_counts=True)
    odd = np.flatnonzero(counts % usual)
    if not len(odd):
        return None
    place = int(odd[np.argmin(first[odd])])
    position = int(whole[first[place]])
    return Incomplete(
        side,
        usual,
        len(odd),
        len(counts),
        int(rows.step[position]),
        int(counts[place]),
        position,
    )
