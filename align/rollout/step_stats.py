"""What each step's responses look like on both sides, and how far they pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from align.core.figure import Column, Table
from align.core.text import Text
from dumps.store.response_flags import ResponseFlag
from dumps.store.rollout_pair import RolloutPair, SideRows, group_size


@dataclass(frozen=True, slots=True)
class SideStats:
    """One side of one step. Lengths are in characters, and in tokens where the dump has ids.

    Shares are of the step's rows; NaN where no row records the property.
    """

    num_rows: int
    num_prompts: int
    group_size: int | None
    mean_length: float
    mean_score: float  # over rows that have one; NaN where none has
    min_score: float
    max_score: float
    empty_share: float
    mean_tokens: float
    cut_share: float
    loop_share: float
    repeat_share: float  # of responses that say what another one to the same prompt says


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
    tokens = rows.index.num_tokens[rows.row]
    ends = (rows.flags & ResponseFlag.END_KNOWN.value) > 0
    return SideStats(
        num_rows=len(rows),
        num_prompts=len(np.unique(rows.prompt)),
        group_size=group_size(rows),
        mean_length=_mean(rows.length),
        mean_score=float(scores.mean()) if len(scores) else float("nan"),
        min_score=float(scores.min()) if len(scores) else float("nan"),
        max_score=float(scores.max()) if len(scores) else float("nan"),
        empty_share=_mean(empty),
        mean_tokens=_mean(tokens[tokens >= 0]),
        cut_share=_mean((rows.flags[ends] & ResponseFlag.CUT.value) > 0),
        loop_share=_mean((rows.flags & ResponseFlag.LOOP.value) > 0),
        repeat_share=_repeat_share(rows),
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _repeat_share(rows: SideRows) -> float:
    key = (rows.prompt + 1) * (rows.response.max(initial=0) + 1) + rows.response
    return 1 - len(np.unique(key)) / len(rows) if len(rows) else float("nan")


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
    ("mean_tokens", "mean tokens", "平均 token 数"),
    ("cut_share", "cut at the limit", "截断占比"),
    ("loop_share", "looping share", "循环占比"),
    ("repeat_share", "repeated within a prompt", "组内重复占比"),
)


def steps_table(steps: tuple[StepStats, ...]) -> Table:
    """Lay the steps out, reference and candidate side by side."""
    columns = [
        Column("step", Text("step", "步"), numeric=True),
        Column("common_prompts", Text("common prompts", "相同的 prompt 数"), numeric=True),
        Column("same_share", Text("same responses", "相同回复占比"), numeric=True),
        *_both_sides(),
    ]
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
            "Responses per step (lengths in characters, and in tokens where the dumps have ids)",
            "每步的回复（长度以字符计；数据中有 token id 时另计 token 数）",
        ),
        tuple(columns),
        rows,
    )


def tasks_table(pair: RolloutPair) -> Table | None:
    """Lay out the same by task, all steps together; None where no row has a task."""
    sides = (pair.reference, pair.candidate)
    names = sorted({name for side in sides for name in side.index.tasks})
    if not names:
        return None
    rows = []
    for name in names:
        stats = [_side(side.take(_of_task(side, name))) for side in sides]
        cells = zip(*map(_cells, stats), strict=True)
        rows.append((name, *(value for both in cells for value in both)))
    return Table(
        "rollout.tasks",
        Text("Responses by task, all steps together", "按任务统计的回复（全部 step）"),
        (Column("task", Text("task", "任务")), *_both_sides()),
        tuple(rows),
    )


def _of_task(side: SideRows, name: str) -> npt.NDArray[np.bool_]:
    number = side.index.tasks.index(name) if name in side.index.tasks else -2
    is_task: npt.NDArray[np.bool_] = side.index.task[side.row] == number
    return is_task


def _both_sides() -> list[Column]:
    return [
        Column(f"{key}.{side}", Text(f"{en}, {side}", f"{zh}（{_ZH[side]}）"), numeric=True)
        for key, en, zh in _NUMERIC_COLUMNS
        for side in ("reference", "candidate")
    ]


def _sides(step: StepStats) -> tuple[SideStats, SideStats]:
    return step.reference, step.candidate


def _cells(side: SideStats) -> tuple[int | float | None, ...]:
    cells = (
        side.num_rows,
        side.num_prompts,
        side.group_size,
        round(side.mean_length, 2),
        round(side.mean_score, 6),
        round(side.min_score, 6),
        round(side.max_score, 6),
        round(side.empty_share, 4),
        round(side.mean_tokens, 2),
        round(side.cut_share, 4),
        round(side.loop_share, 4),
        round(side.repeat_share, 4),
    )
    return tuple(None if cell != cell else cell for cell in cells)
