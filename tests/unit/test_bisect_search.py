"""The search finds the smallest set of changes that turns a verdict, in few trials."""

from __future__ import annotations

from collections.abc import Callable
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.bisect.knob import Change, Knob, KnobKind, Setting, changes_of, setting_of, without
from align.bisect.search import Ending, Outcome, Search, new_search, run
from align.bisect.vote import Reading, Repeats, Vote, majority, needs_more, vote

THIRTY = tuple(Knob(f"k{i}", KnobKind.CONFIG, (0, 1)) for i in range(30))
Judge = Callable[[Setting], Outcome]


def all_of(*knobs: int) -> Judge:
    return bad_if(lambda setting: all(setting[knob] for knob in knobs))


def any_of(*knobs: int) -> Judge:
    return bad_if(lambda setting: any(setting[knob] for knob in knobs))


def test_a_single_cause_among_thirty_is_found_within_the_bound() -> None:
    most = 0
    for cause in range(30):
        search, trials, _ = searched(THIRTY, all_of(cause))
        assert search.sets == [(Change(cause, 1),)]
        assert search.complete
        most = max(most, trials)
    assert most <= 2 * log2(30) + 4
    assert most == 9  # two ends, five halvings, the cause alone, the candidate without it


def test_every_interacting_pair_among_thirty_is_found_within_thirty_trials() -> None:
    most = 0
    for a in range(30):
        for b in range(a + 1, 30):
            search, trials, _ = searched(THIRTY, all_of(a, b))
            assert search.sets == [(Change(a, 1), Change(b, 1))]
            assert search.complete
            most = max(most, trials)
    assert most <= 30


def test_two_causes_of_which_each_suffices_are_both_found() -> None:
    for a, b in ((0, 1), (3, 29), (14, 15), (0, 29)):
        search, trials, _ = searched(THIRTY, any_of(a, b))
        assert sorted(search.sets) == [(Change(a, 1),), (Change(b, 1),)]
        assert search.complete
        assert trials <= 30


def test_a_commit_among_a_thousand_is_found_by_halving() -> None:
    knobs = (Knob("commit", KnobKind.COMMIT, tuple(range(1000))), *THIRTY)
    search, trials, _ = searched(knobs, bad_if(lambda s: s[0] >= 617))
    assert search.sets == [(Change(0, 617),)]
    assert search.complete
    assert trials <= 2 * log2(1030) + 4


def test_a_commit_that_acts_with_a_setting_is_found_with_it() -> None:
    knobs = (Knob("commit", KnobKind.COMMIT, tuple(range(100))), *THIRTY)
    search, _, _ = searched(knobs, bad_if(lambda s: s[0] >= 40 and s[8]))
    assert search.sets == [(Change(0, 40), Change(8, 1))]


def test_several_jobs_need_fewer_rounds() -> None:
    one = searched(THIRTY, bad_if(lambda s: s[11] and s[23]))
    three = searched(THIRTY, bad_if(lambda s: s[11] and s[23]), width=3)
    assert one[0].sets == three[0].sets
    assert three[2] < one[2]
    assert three[1] <= 30


def test_settings_that_cannot_be_judged_are_gone_around() -> None:
    def judge(setting: Setting) -> Outcome:
        if sum(setting) % 4 == 3:  # some combinations crash
            return Outcome.UNRESOLVED
        return Outcome.BAD if setting[12] else Outcome.GOOD

    search, _, _ = searched(THIRTY, judge)
    assert search.sets == [(Change(12, 1),)]


@pytest.mark.parametrize(
    ("judge", "ending"),
    [
        (lambda s: Outcome.BAD, Ending.REFERENCE_IS_BAD),
        (lambda s: Outcome.GOOD, Ending.CANDIDATE_IS_GOOD),
        (lambda s: Outcome.UNRESOLVED, Ending.UNRESOLVED),
    ],
)
def test_ends_that_do_not_differ_stop_the_search_after_two_trials(
    judge: Judge, ending: Ending
) -> None:
    search, trials, _ = searched(THIRTY, judge)
    assert (search.ending, search.sets, trials) == (ending, [], 2)


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))
    )
)
def test_any_conjunction_is_found_as_it_is(case: tuple[int, set[int]]) -> None:
    size, cause = case
    knobs = THIRTY[:size]
    search, _, _ = searched(knobs, bad_if(lambda s: all(s[i] for i in cause)))
    assert search.sets == [tuple(Change(i, 1) for i in sorted(cause))]
    assert search.complete


@given(st.dictionaries(st.integers(0, 31), st.sampled_from(list(Outcome)), min_size=32))
def test_what_is_found_is_bad_and_minimal_whatever_the_verdicts(
    table: dict[int, Outcome],
) -> None:
    knobs = THIRTY[:5]

    def judge(setting: Setting) -> Outcome:
        return table[int("".join(map(str, setting)), 2)]

    search, trials, _ = searched(knobs, judge)
    assert trials <= 32
    for found in search.sets:
        assert judge(setting_of(found, 5)) is Outcome.BAD


def test_going_back_on_a_knob_takes_its_later_levels_along() -> None:
    knobs = (Knob("v", KnobKind.VERSION, (1, 2, 3, 4)), Knob("k", KnobKind.CONFIG, (0, 1)))
    left = without(changes_of(knobs), (Change(0, 2),))
    assert left == (Change(0, 1), Change(1, 1))
    assert setting_of(left, 2) == (1, 1)


def test_the_confidence_of_a_majority_is_the_share_of_a_beta_distribution() -> None:
    # the integral of the density of Beta(k + 1, n - k + 1) from one half on, by hand
    assert majority(1, 1) == pytest.approx(3 / 4)  # of 2p
    assert majority(3, 3) == pytest.approx(15 / 16)  # of 4p^3
    assert majority(1, 2) == pytest.approx(1 / 2)  # symmetric
    assert majority(2, 3) == pytest.approx(11 / 16)  # of 12 p^2 (1 - p)


def test_a_value_far_from_the_threshold_is_not_repeated_and_a_near_one_is() -> None:
    repeats = Repeats(most=5, confidence=0.9)
    far, near = reading(0.4), reading(0.1)
    assert not needs_more([far], repeats, scale=0.5)
    assert needs_more([near], repeats, scale=0.5)
    assert needs_more([near] * 2, repeats, scale=0.5)  # 2 of 2: 0.875
    assert not needs_more([near] * 3, repeats, scale=0.5)  # 3 of 3: 0.9375
    assert vote([far], repeats, 0.5) == Vote(Outcome.BAD, 0, 1, 0, None)
    assert vote([near] * 3, repeats, 0.5).confidence == pytest.approx(15 / 16)


def test_a_stated_noise_gives_the_confidence_of_the_mean() -> None:
    repeats = Repeats(noise=0.2, confidence=0.95)
    # normal distribution: P(Z < 1.6449) = 0.95
    assert needs_more([reading(0.32)], repeats, None)
    assert not needs_more([reading(0.33)], repeats, None)
    assert vote([reading(0.2), reading(0.2)], repeats, None).confidence == pytest.approx(
        0.9213503965, abs=1e-9
    )  # P(Z < sqrt(2))


def test_exit_codes_are_repeated_as_often_as_asked_and_on_if_they_split() -> None:
    repeats = Repeats(least=2, most=7, confidence=0.9)
    good, bad = Reading(Outcome.GOOD), Reading(Outcome.BAD)
    assert needs_more([bad], repeats, None)
    assert not needs_more([bad, bad], repeats, None)
    assert needs_more([bad, good], repeats, None)
    assert needs_more([bad, good, bad], repeats, None)
    assert not needs_more([bad, good, *[bad] * 5], repeats, None)


@pytest.mark.parametrize("noise", [None, 0.2])
def test_a_noisy_verdict_still_gives_the_cause(noise: float | None) -> None:
    """A single trial is wrong in 1 of 160 (distance 2.5 deviations); nine or more are needed."""
    repeats = Repeats(most=9, confidence=0.98, noise=noise)
    draws = np.random.default_rng(7)
    right = 0
    for number in range(200):
        search = noisy_search(int(number % 30), draws, repeats)
        right += search.sets == [(Change(number % 30, 1),)]
    assert right >= 195


def noisy_search(cause: int, draws: np.random.Generator, repeats: Repeats) -> Search:
    """Search with values 0 and 1, a threshold of 0.5 and a deviation of 0.2."""

    def judge(setting: Setting) -> Outcome:
        readings: list[Reading] = []
        while not readings or needs_more(readings, repeats, 0.5):
            readings.append(reading(setting[cause] - 0.5 + draws.normal(0, 0.2)))
        return vote(readings, repeats, 0.5).outcome

    return searched(THIRTY, judge)[0]


def reading(distance: float) -> Reading:
    return Reading(Outcome.BAD if distance > 0 else Outcome.GOOD, distance)


def bad_if(condition: Callable[[Setting], object]) -> Judge:
    return lambda setting: Outcome.BAD if condition(setting) else Outcome.GOOD


def searched(knobs: tuple[Knob, ...], judge: Judge, width: int = 1) -> tuple[Search, int, int]:
    """Return the search, the trials and the rounds it took."""
    search = new_search(knobs, width)
    asking = run(search)
    trials = rounds = 0
    try:
        ask = next(asking)
        while True:
            assert len(ask.settings) <= max(2, width)
            trials += len(ask.settings)
            rounds += 1
            ask = asking.send({setting: judge(setting) for setting in ask.settings})
    except StopIteration:
        return search, trials, rounds
