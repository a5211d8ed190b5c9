"""Does each dumped score stand at its own response? Known where a simple rule gives the scores.

The rule is found on the run whose scores it reproduces. If the other run has, step by step, as many
high scores as that rule gives its responses, but at other rows, its scores are permuted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.rollout.reward_rules import RULES, is_right
from dumps.store.rollout_index import Int64, RolloutIndex, RowText

Bool = npt.NDArray[np.bool_]

REPRODUCED = Threshold(
    0.98, source="a rule that is the run's own fits every row but for odd notations of an answer"
)
_MAX_ROWS = 4096
_MIN_EACH = 16  # rows scored high, and rows scored low
_QUOTED = 3
_QUOTE = 160
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The first rows of a run that have a score and a ground truth.

    Args:
        rows: positions in the index.
        high: bool [n], scores above the middle of the run's range.
        texts: [n].
    """

    index: RolloutIndex
    rows: Int64
    high: Bool
    texts: Sequence[RowText]

    def right(self, rule: str) -> Bool:
        """Score every response again."""
        return np.array(
            [is_right(rule, text.response, text.ground_truth or "") for text in self.texts],
            np.bool_,
        )


def permuted_by_rule(reference: RolloutIndex, candidate: RolloutIndex) -> tuple[Finding, ...]:
    """Find the run in which the scores of a known rule stand at other rows."""
    both = {Side.REFERENCE: _scored(reference), Side.CANDIDATE: _scored(candidate)}
    if any(scored is None for scored in both.values()):
        return ()
    for side, other in (
        (Side.CANDIDATE, Side.REFERENCE),
        (Side.REFERENCE, Side.CANDIDATE),
    ):
        own, sound = both[side], both[other]
        assert own is not None and sound is not None
        for rule in RULES:
            if not _reproduces(sound.right(rule), sound.high):
                continue
            right = own.right(rule)
            if (right == own.high).mean() < REPRODUCED.value and _as_many(own, right):
                return (_finding(side, rule, own, right),)
    return ()


def _scored(index: RolloutIndex) -> Scored | None:
    has_truth = index.ground_truths[index.ground_truth] != b"" if len(index) else np.zeros(0, bool)
    rows = np.flatnonzero(np.isfinite(index.score) & has_truth & (index.step >= 0))
    rows = rows[np.argsort(index.step[rows], kind="stable")][:_MAX_ROWS]
    if not len(rows):
        return None
    scores = index.score[rows]
    high = scores > (scores.min() + scores.max()) / 2
    if min(int(high.sum()), int((~high).sum())) < _MIN_EACH:
        return None
    return Scored(index, rows, high, index.texts(rows))


def _reproduces(right: Bool, high: Bool) -> bool:
    return bool((right == high).mean() >= REPRODUCED.value)


def _as_many(own: Scored, right: Bool) -> bool:
    """Tell whether nearly every step has as many high scores as right responses."""
    step = np.unique(own.index.step[own.rows], return_inverse=True)[1]
    counts = [np.bincount(step, flags) for flags in (own.high, right)]
    return bool((counts[0] == counts[1]).mean() >= REPRODUCED.value)


def _finding(side: Side, rule: str, own: Scored, right: Bool) -> Finding:
    wrong = np.flatnonzero(right != own.high)
    first = int(own.index.step[own.rows[wrong[0]]])
    count = f"{len(wrong)} of {len(right)}"
    return Finding(
        id="reward.permuted",
        rung=Rung.REWARD,
        severity=Severity.ERROR,
        title=Text(
            f"the {side.value}'s dumped scores stand at other rows than their responses: {count} "
            f"rows, first at step {first}",
            f"{_ZH[side]}记录的得分与回复不在同一行：{len(right)} 行中有 {len(wrong)} 行，"
            f"最早在第 {first} 步",
        ),
        reference=len(wrong) if side is Side.REFERENCE else 0,
        candidate=len(wrong) if side is Side.CANDIDATE else 0,
        evidence=tuple(
            Evidence(
                own.texts[i].source,
                side,
                line=own.texts[i].line,
                key="score",
                text=f"ground truth {own.texts[i].ground_truth!r}: "
                f"{own.texts[i].response[-_QUOTE:]!r}"[:200],
                values=(float(own.index.score[own.rows[i]]),),
            )
            for i in wrong[:_QUOTED].tolist()
        ),
        why=Text(
            f"The rule “{rule}” gives the other run's scores row by row, and this run's only as "
            "numbers a step: the scores are right and in another order.",
            f"规则“{rule}”能逐行重现另一侧的得分，而本侧只在每步的总数上一致："
            "得分本身正确，但顺序不同。",
        ),
        fix=Text(
            "Look where scores and responses are joined (sorting by length, asynchronous reward "
            "workers, a re-ordered batch) and join them by uid.",
            "检查得分与回复合并之处（按长度排序、异步奖励进程、重排的 batch），并改为按 uid 合并。",
        ),
        mechanism=Mechanism(Rung.REWARD, Strength.SEMANTIC),
    )
