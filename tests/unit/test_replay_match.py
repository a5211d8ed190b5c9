"""Recorded responses are found by what they answer, never by where they stand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from align.core.rollout_record import RolloutRecord
from dumps.inject.match import assign, place_rows
from dumps.inject.recorded import Prompt, Step, prompt_of, step_of

asked = st.tuples(st.integers(0, 3), st.integers(0, 2))  # what is asked, and by which row


def record(
    ask: int, sample: int, *, row: int | None = None, uid: str | None = None
) -> RolloutRecord:
    return RolloutRecord(
        prompt=f"ask {ask}",
        prompt_ids=(ask, 7),
        response_ids=(ask, sample, 9),
        step=1,
        dataset_index=row,
        sample_index=sample,
        uid=uid,
    )


def step(prompts: list[tuple[int, int]], n: int) -> Step:
    """One group a prompt; rows of equal prompts are told apart by their uid."""
    rows = [
        record(ask, sample, row=row, uid=f"u{i}")
        for i, (ask, row) in enumerate(prompts)
        for sample in range(n)
    ]
    return step_of(1, rows)


@given(st.lists(asked, min_size=1, max_size=8), st.integers(1, 3), st.randoms())
def test_permuted_prompts_get_their_own_responses(prompts, n, random) -> None:
    recorded = step(prompts, n)
    order = list(range(len(prompts)))
    random.shuffle(order)
    wanted = [Prompt((prompts[i][0], 7), None, prompts[i][1]) for i in order]
    found = assign(recorded, wanted)
    assert sorted(p for p in found if p is not None) == list(range(len(prompts)))
    for prompt, place in zip(wanted, found, strict=True):
        assert place is not None
        group = recorded.groups[place].prompt
        assert (group.ids, group.dataset_index) == (prompt.ids, prompt.dataset_index)


@given(st.lists(asked, min_size=1, max_size=8), st.integers(1, 3), st.randoms())
def test_trained_rows_are_told_in_any_order(prompts, n, random) -> None:
    recorded = step(prompts, n)
    order = list(range(len(recorded.records)))
    random.shuffle(order)
    rows = [(prompt_of(recorded.records[i]), recorded.records[i].response_ids or ()) for i in order]
    found = place_rows(recorded, rows)
    assert sorted(p for p in found if p is not None) == sorted(order)
    for place, i in zip(found, order, strict=True):
        assert place is not None
        assert recorded.records[place].response_ids == recorded.records[i].response_ids


def test_a_response_that_was_changed_counts_for_its_prompt_and_not_as_generated() -> None:
    recorded = step([(0, 0), (1, 1)], 2)
    rows = [(Prompt((1, 7)), (1, 0, 9)), (Prompt((1, 7)), (5, 5)), (Prompt((8, 7)), (5,))]
    assert place_rows(recorded, rows) == [2, 3, None]


def test_without_ids_the_text_decides_whatever_its_white_space() -> None:
    rows = [replace(record(ask, 0), prompt_ids=None) for ask in (0, 1)]
    recorded = step_of(1, rows)
    assert assign(recorded, [Prompt((5,), " ask\n1 "), Prompt((5,), "ask 2")]) == [1, None]


def test_the_same_prompt_twice_in_a_step_is_given_once_a_group() -> None:
    recorded = step([(0, 4), (0, 2)], 2)
    assert assign(recorded, [Prompt((0, 7), None, 2), Prompt((0, 7), None, 4)]) == [1, 0]
    assert assign(recorded, [Prompt((0, 7))] * 3) == [0, 1, None]
    assert assign(recorded, [Prompt((0, 7))], taken=[0]) == [1]


def test_rows_without_uid_are_cut_into_groups_by_sample_or_by_the_smallest_group() -> None:
    numbered = step_of(1, [record(0, s) for s in (0, 1, 0, 1)])
    assert [group.rows for group in numbered.groups] == [(0, 1), (2, 3)]
    bare = [replace(record(ask, 0), sample_index=None) for ask in (0, 0, 1, 1, 0, 0)]
    assert [group.rows for group in step_of(1, bare).groups] == [(0, 1), (4, 5), (2, 3)]
