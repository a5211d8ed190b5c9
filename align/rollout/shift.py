"""Statistics of responses that two runs are tested on, and where they part beyond chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from align.core.rung import Rung
from align.core.text import Text
from align.rollout.permutation import FAMILY, Shift, Units, is_beyond_chance, measure
from dumps.store.response_flags import ResponseFlag
from dumps.store.rollout_pair import RolloutPair, SideRows

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Statistic:
    """One property of responses.

    Args:
        id: last part of the finding's id.
        metric: vocabulary name of the closest metric.
        rung: link that produces it.
        flag: bit of `ResponseFlag`, None for length, score and repeats.
        degenerate: no trained policy gives it: differences count at any step.
    """

    id: str
    metric: str
    rung: Rung
    name: Text
    flag: ResponseFlag | None = None
    degenerate: bool = False


LENGTH = Statistic(
    "response_length",
    "response_length/mean",
    Rung.ROLLOUT,
    Text("mean response length in characters", "平均回答长度（字符）"),
)
SCORE = Statistic("scores", "critic/score/mean", Rung.REWARD, Text("mean score", "平均得分"))
REPEATS = Statistic(
    "repeats",
    "rollout/repeats",
    Rung.ROLLOUT,
    Text("share of responses repeated within their group", "组内重复回答的占比"),
)
STATISTICS = (
    LENGTH,
    SCORE,
    REPEATS,
    Statistic(
        "empty",
        "rollout/empty",
        Rung.ROLLOUT,
        Text("share of empty responses", "空回答的占比"),
        ResponseFlag.EMPTY,
        degenerate=True,
    ),
    Statistic(
        "token0",
        "rollout/token0",
        Rung.ROLLOUT,
        Text('share of responses made of "!" (token id 0)', "由“!”（token id 0）组成的回答占比"),
        ResponseFlag.TOKEN0,
        degenerate=True,
    ),
    Statistic(
        "loops",
        "rollout/loops",
        Rung.ROLLOUT,
        Text("share of responses that end in a loop", "以循环重复结尾的回答占比"),
        ResponseFlag.LOOP,
    ),
    Statistic(
        "next_turn",
        "rollout/next_turn",
        Rung.ROLLOUT,
        Text(
            "share of responses that run on into another turn",
            "越过结束符、续写下一轮对话的回答占比",
        ),
        ResponseFlag.NEXT_TURN,
    ),
    Statistic(
        "broken_text",
        "rollout/broken_text",
        Rung.ROLLOUT,
        Text("share of responses with bytes that are no text", "含非法字节的回答占比"),
        ResponseFlag.REPLACED,
    ),
)


@dataclass(frozen=True, slots=True)
class Tested:
    """One statistic at one step: the shift, the plain means, and whether chance explains it."""

    statistic: Statistic
    step: int
    shift: Shift
    reference: float
    candidate: float
    beyond_chance: bool


def judge_first_step(pair: RolloutPair) -> tuple[Tested, ...]:
    """Test every statistic at the first common step, by drawn permutations.

    Before its first update a policy is the initial model on both sides, so responses to the same
    prompts must come from one distribution; the test is exact there and only there.
    """
    step, reference, candidate = next(pair.by_step())
    level = FAMILY.value / len(STATISTICS)
    tested = []
    for statistic in STATISTICS:
        units = _units(statistic, reference, candidate)
        shift = measure(units)
        if shift is not None:
            beyond = is_beyond_chance(units, shift, level)
            tested.append(Tested(statistic, step, shift, *_means(units), beyond))
    return tuple(tested)


def first_later_shift(pair: RolloutPair, statistic: Statistic) -> Tested | None:
    """Return the first step after the first at which a statistic parts beyond sampling noise.

    Judged by the normal limit at the family's level shared among steps and statistics. Policies
    that were trained apart really differ, so this dates a divergence and does not explain it.
    """
    num_tests = max(1, len(pair.common_steps)) * len(STATISTICS)
    for step, reference, candidate in pair.by_step():
        units = _units(statistic, reference, candidate)
        shift = measure(units)
        if step != pair.common_steps[0] and shift and shift.p_normal * num_tests <= FAMILY.value:
            return Tested(statistic, step, shift, *_means(units), True)
    return None


def _units(statistic: Statistic, reference: SideRows, candidate: SideRows) -> Units:
    sides = [side.take(side.prompt >= 0) for side in (reference, candidate)]
    if statistic is REPEATS:
        parts = [_repeats(side) for side in sides]
    else:
        parts = [(_values(statistic, side), side.prompt) for side in sides]
        if any(_repeats(side)[0].any() for side in sides):
            parts = [_group_means(*part) for part in parts]
    return Units(
        value=np.concatenate([value for value, _ in parts]),
        stratum=np.concatenate([prompt for _, prompt in parts]),
        is_candidate=np.repeat([False, True], [len(value) for value, _ in parts]),
    )


def _values(statistic: Statistic, rows: SideRows) -> Float64:
    if statistic is LENGTH:
        return rows.length.astype(np.float64)
    if statistic is SCORE:
        return rows.score
    assert statistic.flag is not None
    return ((rows.flags & statistic.flag.value) > 0).astype(np.float64)


def _repeats(rows: SideRows) -> tuple[Float64, npt.NDArray[np.int64]]:
    """Return, for each prompt, the share of its responses that say what another one said."""
    prompts, inverse, num_rows = np.unique(rows.prompt, return_inverse=True, return_counts=True)
    width = rows.response.max(initial=0) + 1
    distinct = np.unique(inverse * width + rows.response) // width
    num_distinct = np.bincount(distinct, minlength=len(prompts))
    return 1 - num_distinct / num_rows, prompts


def _group_means(
    value: Float64, prompt: npt.NDArray[np.int64]
) -> tuple[Float64, npt.NDArray[np.int64]]:
    finite = np.isfinite(value)
    prompts, inverse, num_rows = np.unique(prompt[finite], return_inverse=True, return_counts=True)
    return np.bincount(inverse, value[finite]) / num_rows, prompts


def _means(units: Units) -> tuple[float, float]:
    """Return plain means of both sides over the prompts they share."""
    shared = np.intersect1d(units.stratum[units.is_candidate], units.stratum[~units.is_candidate])
    used = np.isin(units.stratum, shared) & np.isfinite(units.value)
    reference = units.value[used & ~units.is_candidate]
    candidate = units.value[used & units.is_candidate]
    return float(reference.mean()), float(candidate.mean())
