"""What each step's responses look like on both sides, and how far they pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.figure import Column, Table
from align.core.text import Text
from dumps.store.response_flags import ResponseFlag
from dumps.store.rollout_pair import RolloutPair, SideRows, group_size


@dataclass(frozen=True, slots=True)
class SideStats:
    """One side of one step. Lengths are in characters: text dumps hold no token ids."""

    num_rows: int
    num_prompts: int
    group_size: int | None
    mean_length: float
    mean_score: float  # over rows that have one; NaN where none has
    min_score: float
    max_score: float
    empty_share: float


@dataclass(frozen=True, slots=True)
class StepStats:
    """Both sides of one step."""

    step: int
    reference: SideStats
    candidate: SideStats
    num_common_prompts: int
    num_same_responses: int  # rows whose prompt and response are found on the other side too

    @property
    def same_share(self) -> float:
        """Share of the smaller side's rows that the other side has word by word."""
        rows = min(self.reference.num_rows, self.candidate.num_rows)
        return self.num_same_responses / rows if rows else 0.0


def step_stats(pair: RolloutPair) -> tuple[StepStats, ...]:
    """Summarise every common step."""
    return tuple(_stats(step, a, b) for step, a, b in pair.by_step())


def _stats(step: int, reference: SideRows, candidate: SideRows) -> StepStats:
    return StepStats(
        step=step,
        reference=_side(reference),
        candidate=_side(candidate),
        num_common_prompts=len(
            np.intersect1d(reference.prompt[reference.prompt >= 0], candidate.prompt)
        ),
        num_same_responses=_num_same(reference, candidate),
    )


def _side(rows: SideRows) -> SideStats:
    scores = rows.score[~np.isnan(rows.score)]
    empty = (rows.flags & ResponseFlag.EMPTY.value) > 0
    return SideStats(
        num_rows=len(rows),
        num_prompts=len(np.unique(rows.prompt)),
        group_size=group_size(rows),
        mean_length=float(rows.length.mean()),
        mean_score=float(scores.mean()) if len(scores) else float("nan"),
        min_score=float(scores.min()) if len(scores) else float("nan"),
        max_score=float(scores.max()) if len(scores) else float("nan"),
        empty_share=float(empty.mean()),
    )


def _num_same(reference: SideRows, candidate: SideRows) -> int:
    """Count rows equal in prompt and response, each used once."""
    keys = [_text_key(reference, candidate), _text_key(candidate, reference)]
    uniques = [np.unique(key, return_counts=True) for key in keys]
    _, at_a, at_b = np.intersect1d(uniques[0][0], uniques[1][0], return_indices=True)
    return int(np.minimum(uniques[0][1][at_a], uniques[1][1][at_b]).sum())


def _text_key(rows: SideRows, other: SideRows) -> npt.NDArray[np.int64]:
    width = 1 + int(max(rows.response.max(initial=0), other.response.max(initial=0)))
    return (rows.prompt + 1) * width + rows.response


_ZH = {"reference": "参考", "candidate": "被测"}
_NUMERIC_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("rows", "rows", "行数"),
    ("prompts", "prompts", "prompt 数"),
    ("group_size", "responses per prompt", "每个 prompt 的回复数"),
    ("mean_length", "mean characters", "平均字符数"),
    ("mean_score", "mean score", "平均得分"),
    ("min_score", "lowest score", "最低得分"),
    ("max_score", "highest score", "最高得分"),
    ("empty_share", "empty share", "空回复占比"),
)


def steps_table(steps: tuple[StepStats, ...]) -> Table:
    """Lay the steps out, reference and candidate side by side."""
    columns = [
        Column("step", Text("step", "步"), numeric=True),
        Column("common_prompts", Text("common prompts", "相同的 prompt 数"), numeric=True),
        Column("same_share", Text("same responses", "相同回复占比"), numeric=True),
    ]
    for key, en, zh in _NUMERIC_COLUMNS:
        for side in ("reference", "candidate"):
            columns.append(
                Column(f"{key}.{side}", Text(f"{en}, {side}", f"{zh}（{_ZH[side]}）"), numeric=True)
            )
    rows = tuple(
        (
            step.step,
            step.num_common_prompts,
            round(step.same_share, 4),
            *(value for pair in zip(*map(_cells, _sides(step)), strict=True) for value in pair),
        )
        for step in steps
    )
    return Table(
        "rollout.steps",
        Text(
            "Responses per step (lengths in characters: the dumps have no token ids)",
            "每步的回复（长度以字符计：数据中没有 token id）",
        ),
        tuple(columns),
        rows,
    )


def _sides(step: StepStats) -> tuple[SideStats, SideStats]:
    return step.reference, step.candidate


def _cells(side: SideStats) -> tuple[int | float | None, ...]:
    return (
        side.num_rows,
        side.num_prompts,
        side.group_size,
        round(side.mean_length, 2),
        round(side.mean_score, 6),
        round(side.min_score, 6),
        round(side.max_score, 6),
        round(side.empty_share, 4),
    )
