"""Statistics of responses that two runs are tested on, and where they part beyond chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from align.core.rung import Rung
from align.core.text import Text
from align.rollout.permutation import (
    FAMILY,
    Bool,
    Float64,
    Int64,
    Shift,
    Units,
    is_beyond_chance,
    shifts,
)
from dumps.store.response_flags import ResponseFlag
from dumps.store.rollout_pair import RolloutPair


@dataclass(frozen=True, slots=True)
class Statistic:
    """One property of responses.

    Args:
        id: last part of the finding's id.
        metric: vocabulary name of the closest metric.
        rung: link that produces it.
        flag: bit of `ResponseFlag`, None for length, score and repeats.
        degenerate: no trained policy gives it: differences count at any step.
        known: bit that says whether a row records the flag at all; None where its text decides.
        absent: the statistic is the share of rows without the flag.
    """

    id: str
    metric: str
    rung: Rung
    name: Text
    flag: ResponseFlag | None = None
    degenerate: bool = False
    known: ResponseFlag | None = None
    absent: bool = False


LENGTH = Statistic(
    "response_length",
    "response_length/mean",
    Rung.ROLLOUT,
    Text("mean response length in characters", "平均回复长度（字符）"),
)
SCORE = Statistic("scores", "critic/score/mean", Rung.REWARD, Text("mean score", "平均得分"))
REPEATS = Statistic(
    "repeats",
    "rollout/repeats",
    Rung.ROLLOUT,
    Text("share of responses repeated within their group", "组内重复回复占比"),
)
STATISTICS = (
    LENGTH,
    SCORE,
    REPEATS,
    Statistic(
        "empty",
        "rollout/empty",
        Rung.ROLLOUT,
        Text("share of empty responses", "空回复占比"),
        ResponseFlag.EMPTY,
        degenerate=True,
    ),
    Statistic(
        "token0",
        "rollout/token0",
        Rung.ROLLOUT,
        Text('share of responses made of "!" (token id 0)', "由“!”（token id 0）组成的回复占比"),
        ResponseFlag.TOKEN0,
        degenerate=True,
    ),
    Statistic(
        "loops",
        "rollout/loops",
        Rung.ROLLOUT,
        Text("share of responses that end in a loop", "以循环重复结尾的回复占比"),
        ResponseFlag.LOOP,
    ),
    Statistic(
        "next_turn",
        "rollout/next_turn",
        Rung.ROLLOUT,
        Text(
            "share of responses that run on into another turn",
            "越过结束符、续写下一轮对话的回复占比",
        ),
        ResponseFlag.NEXT_TURN,
    ),
    Statistic(
        "broken_text",
        "rollout/broken_text",
        Rung.ROLLOUT,
        Text("share of responses with bytes that are no text", "含非法字节的回复占比"),
        ResponseFlag.REPLACED,
    ),
    Statistic(
        "non_printing",
        "rollout/non_printing",
        Rung.ROLLOUT,
        Text(
            "share of responses with a run of characters that do not print",
            "含连续不可打印字符的回复占比",
        ),
        ResponseFlag.NON_PRINTING,
        degenerate=True,
    ),
    Statistic(
        "truncated",
        "response_length/clip_ratio",
        Rung.ROLLOUT,
        Text("share of responses cut at the length limit", "被长度上限截断的回复占比"),
        ResponseFlag.CUT,
        known=ResponseFlag.END_KNOWN,
    ),
    Statistic(
        "missing_eos",
        "rollout/missing_eos",
        Rung.ROLLOUT,
        Text(
            "share of responses that do not end in a special token",
            "结尾没有特殊 token 的回复占比",
        ),
        ResponseFlag.SPECIAL_END,
        known=ResponseFlag.SPECIAL_KEPT,
        absent=True,
    ),
    Statistic(
        "chinese",
        "rollout/chinese",
        Rung.ROLLOUT,
        Text("share of responses written in Chinese", "以中文为主的回复占比"),
        ResponseFlag.CHINESE,
    ),
    Statistic(
        "mixed_languages",
        "rollout/mixed_languages",
        Rung.ROLLOUT,
        Text("share of responses that mix Chinese and Latin text", "中英文混杂的回复占比"),
        ResponseFlag.MIXED,
    ),
)


def has(flags: npt.NDArray[np.integer[Any]], statistic: Statistic) -> Bool:
    """bool [n]: the rows that have the property; none for a statistic that is no flag."""
    if statistic.flag is None:
        return np.zeros(len(flags), np.bool_)
    shows: Bool = ((flags & statistic.flag.value) > 0) != statistic.absent
    return shows


@dataclass(frozen=True, slots=True)
class Tested:
    """One statistic at one step: the shift, the plain means, and whether chance explains it."""

    statistic: Statistic
    step: int
    shift: Shift
    reference: float
    candidate: float
    beyond_chance: bool


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """Both sides' responses to prompts common to both, in strata of one prompt of one step.

    Args:
        steps: int64 [num_steps], ascending.
        step_of: int64 [num_strata], position in ``steps``.
        stratum, is_candidate, length, score, flags: [n], one a response.
        repeats: float64 [2 * num_strata]; of the reference and the candidate in turn, the share
            of a group's responses that say what another of them said.
    """

    steps: Int64
    step_of: Int64
    stratum: Int64
    is_candidate: Bool
    length: Float64
    score: Float64
    flags: Int64
    repeats: Float64

    def units(self, statistic: Statistic) -> Units:
        """Return one statistic's exchangeable values.

        In a step in which groups of both sides repeat themselves, responses are not independent
        and groups are whole. One side alone says nothing: alike runs would both repeat.
        """
        group = self.stratum * 2 + self.is_candidate
        num_groups = 2 * len(self.step_of)
        of_group = Units(self.repeats, np.arange(num_groups) // 2, np.arange(num_groups) % 2 == 1)
        if statistic is REPEATS:
            return of_group
        value = self._values(statistic)
        known = np.isfinite(value)
        repeating = self._repeats_on_both_sides()[self.step_of]
        single = Units(value, self.stratum, self.is_candidate).take(
            known & ~repeating[self.stratum]
        )
        count = np.bincount(group[known], minlength=num_groups)
        mean = np.bincount(group[known], value[known], num_groups) / np.maximum(1, count)
        whole = Units(mean, of_group.stratum, of_group.is_candidate).take(
            repeating[of_group.stratum] & (count > 0)
        )
        return Units(
            np.concatenate([single.value, whole.value]),
            np.concatenate([single.stratum, whole.stratum]),
            np.concatenate([single.is_candidate, whole.is_candidate]),
        )

    def _repeats_on_both_sides(self) -> Bool:
        """Return, for each step, whether some group of each side repeats a response."""
        both = np.ones(len(self.steps), np.bool_)
        for side in self.repeats.reshape(-1, 2).T:
            both &= np.bincount(self.step_of, side, len(self.steps)) > 0
        return both

    def _values(self, statistic: Statistic) -> Float64:
        if statistic is LENGTH:
            return self.length
        if statistic is SCORE:
            return self.score
        value = has(self.flags, statistic).astype(np.float64)
        if statistic.known is not None:
            value[(self.flags & statistic.known.value) == 0] = np.nan
        return value


def common_responses(pair: RolloutPair) -> Responses:
    """Gather the responses to prompts that a step has on both sides."""
    sides = (pair.reference, pair.candidate)
    step = np.concatenate([side.step for side in sides])
    prompt = np.concatenate([side.prompt for side in sides])
    is_candidate = np.repeat([False, True], [len(side) for side in sides])
    key = np.where((step < 0) | (prompt < 0), -1, step * (prompt.max(initial=0) + 1) + prompt)
    keys = np.intersect1d(key[~is_candidate], key[is_candidate])
    used = np.isin(key, keys[keys >= 0])
    strata, first, stratum = np.unique(key[used], return_index=True, return_inverse=True)
    steps, step_of = np.unique(step[used][first], return_inverse=True)
    response = np.concatenate([side.response for side in sides])[used]
    return Responses(
        steps=steps,
        step_of=step_of,
        stratum=stratum,
        is_candidate=is_candidate[used],
        length=np.concatenate([side.length for side in sides])[used].astype(np.float64),
        score=np.concatenate([side.score for side in sides])[used],
        flags=np.concatenate([side.flags for side in sides])[used].astype(np.int64),
        repeats=_repeats(stratum * 2 + is_candidate[used], response, 2 * len(strata)),
    )


def judge_first_step(responses: Responses) -> tuple[Tested, ...]:
    """Test every statistic at the first step, by drawn permutations.

    Before its first update a policy is the initial model on both sides, so responses to the same
    prompts must come from one distribution; the test is exact there and only there.
    """
    level = FAMILY.value / len(STATISTICS)
    tested = []
    for statistic in STATISTICS:
        units = responses.units(statistic)
        units = units.take(responses.step_of[units.stratum] == 0)
        shift = next(iter(shifts(units, responses.step_of)), None)
        if shift is not None:
            beyond = is_beyond_chance(units, shift, level)
            tested.append(_tested(statistic, responses, units, 0, shift, beyond))
    return tuple(tested)


def first_later_shift(responses: Responses, statistic: Statistic) -> Tested | None:
    """Return the first step after the first at which a statistic parts beyond sampling noise.

    Judged by the normal limit at the family's level shared among steps and statistics. Policies
    that were trained apart really differ, so this dates a divergence and does not explain it.
    """
    level = FAMILY.value / (max(1, len(responses.steps)) * len(STATISTICS))
    units = responses.units(statistic)
    for position, shift in enumerate(shifts(units, responses.step_of)):
        if position and shift and shift.p_normal <= level:
            units = units.take(responses.step_of[units.stratum] == position)
            return _tested(statistic, responses, units, position, shift, True)
    return None


def _tested(
    statistic: Statistic,
    responses: Responses,
    units: Units,
    position: int,
    shift: Shift,
    beyond_chance: bool,
) -> Tested:
    return Tested(
        statistic=statistic,
        step=int(responses.steps[position]),
        shift=shift,
        reference=float(units.value[~units.is_candidate].mean()),
        candidate=float(units.value[units.is_candidate].mean()),
        beyond_chance=beyond_chance,
    )


def _repeats(group: Int64, response: Int64, num_groups: int) -> Float64:
    width = response.max(initial=0) + 1
    distinct = np.unique(group * width + response) // width
    num_distinct = np.bincount(distinct, minlength=num_groups)
    repeats: Float64 = 1 - num_distinct / np.maximum(1, np.bincount(group, minlength=num_groups))
    return repeats
