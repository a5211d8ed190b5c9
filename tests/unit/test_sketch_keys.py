"""Signs and token keys of the sketches: fixed numbers, equal wherever a token stands."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from dumps.capture.sketch.hash import digest, signs, splitmix64
from dumps.capture.sketch.token_keys import kept, num_sequences, prefix_keys, tokens_of

WHOLE = 1 << 64
ROWS = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=9), min_size=1, max_size=5)


def test_the_hash_is_splitmix64_of_its_authors() -> None:
    # first outputs of the reference implementation for the seeds 0 and 1234567
    hashed = splitmix64(torch.tensor([0, 1234567])).numpy().view(np.uint64)
    assert [int(value) for value in hashed] == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_signs_are_balanced_and_differ_between_rows_and_columns() -> None:
    rows, columns = signs(torch.arange(4096), 1, 16), signs(torch.arange(4096), 2, 16)
    assert set(rows.unique().tolist()) == {-1.0, 1.0}
    # 4 standard deviations of a mean of 65,536 coins
    assert abs(float(rows.mean())) < 4 / 256
    assert abs(float((rows * columns).mean())) < 4 / 256


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(0, 20))
def test_digests_of_parts_add_up_to_the_whole_in_any_order(keys: list[int], cut: int) -> None:
    whole = digest(torch.tensor(keys, dtype=torch.int64), 3)
    parts = [digest(torch.tensor(part, dtype=torch.int64), 3) for part in (keys[cut:], keys[:cut])]
    assert int(whole) == int(parts[0] + parts[1])


@given(ROWS)
def test_a_key_is_the_hash_of_the_prefix_wherever_the_token_stands(rows: list[list[int]]) -> None:
    expected = [key for row in rows for key in _by_hand(row)]
    width = max(map(len, rows))
    for side in ("left", "right"):
        ids, mask = _padded(rows, width, side)
        assert _unsigned(tokens_of(ids, mask).keys) == expected
    packed = torch.tensor([[token for row in rows for token in row]])
    positions = torch.tensor([[i for row in rows for i in range(len(row))]])
    bounds = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
    by_positions = tokens_of(packed, None, positions)
    assert _unsigned(by_positions.keys) == expected
    assert _unsigned(tokens_of(packed, None, None, bounds).keys) == expected
    assert num_sequences(by_positions, positions) == len(rows)


def test_another_id_changes_every_key_from_there_on_and_none_before() -> None:
    starts = torch.tensor([True, False, False, False])
    own = prefix_keys(torch.tensor([5, 6, 7, 8]), starts)
    other = prefix_keys(torch.tensor([5, 9, 7, 8]), starts)
    assert (own == other).tolist() == [True, False, False, False]


def test_wrong_bounds_of_packed_rows_leave_the_keys_to_the_positions() -> None:
    ids, positions = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[0, 1, 0, 1]])
    right = tokens_of(ids, None, positions, torch.tensor([0, 2, 4]))
    wrong = tokens_of(ids, None, positions, torch.tensor([0, 4]))
    assert right.keys.equal(wrong.keys)


def test_kept_logits_carry_the_keys_of_the_tokens_that_choose() -> None:
    ids, mask = _padded([[1, 2, 3], [4, 5, 6, 7]], 4, "left")
    tokens = tokens_of(ids, mask)
    last_two = kept(tokens, 2)
    chosen = kept(tokens, torch.tensor([2, 3]))
    assert last_two is not None and chosen is not None
    assert last_two.keys.equal(tokens.keys[[1, 2, 5, 6]])
    assert chosen.keys.equal(last_two.keys)
    assert kept(tokens, 0) is None


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 2, 3), (8, 3), (2, 4, 1, 3)])
def test_rows_are_found_in_every_layout(shape: tuple[int, ...]) -> None:
    ids, mask = _padded([[1, 2, 3], [4, 5, 6, 7]], 4, "right")
    values = torch.arange(24.0).reshape(2, 4, 3)
    laid = values.transpose(0, 1) if shape[0] == 4 else values.reshape(shape)
    rows = tokens_of(ids, mask).rows(laid)
    assert rows is not None
    assert rows.equal(values[mask.bool()])


def test_a_tensor_without_a_row_a_token_has_no_rows() -> None:
    ids, mask = _padded([[1, 2, 3], [4, 5, 6, 7]], 4, "right")
    assert tokens_of(ids, mask).rows(torch.zeros(5, 3)) is None


def _padded(rows: list[list[int]], width: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    ids, mask = torch.zeros(2, len(rows), width, dtype=torch.int64)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), None)
        ids[i, place], mask[i, place] = torch.tensor(row), 1
    return ids, mask


def _mixed(value: int) -> int:
    state = (value + 0x9E3779B97F4A7C15) % WHOLE
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % WHOLE
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % WHOLE
    return state ^ (state >> 31)


def _by_hand(row: list[int]) -> list[int]:
    """Hash prefixes one token after the other, in Python's whole numbers."""
    keys, prefix = [], 0
    for place, token in enumerate(row):
        power = pow(0x2545F4914F6CDD1D, place + 1, WHOLE)
        prefix = (prefix + _mixed(token) * power) % WHOLE
        keys.append(_mixed(prefix ^ _mixed(place)))
    return keys


def _unsigned(keys: torch.Tensor) -> list[int]:
    return [int(key) % WHOLE for key in keys]
