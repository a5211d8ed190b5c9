"""Signs and token keys of the sketches: fixed numbers, equal wherever a token stands."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from dumps.capture.sketch.hash import digest, signs, splitmix64
from dumps.capture.sketch.local import SharedSequences
from dumps.capture.sketch.pass_tokens import tokens_of_pass
from dumps.capture.sketch.token_keys import kept, num_sequences, part, prefix_keys, tokens_of

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


IDS = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(0))


def test_each_rank_of_sequence_parallelism_has_the_keys_of_its_chunk() -> None:
    mask = torch.ones_like(IDS)
    mask[1, 5:] = 0
    whole = tokens_of(IDS, mask)
    hidden = torch.randn(8, 2, 3)  # [s, b, h]
    rows = whole.rows(hidden)
    seen = []
    for rank in range(2):
        own = part(whole, rank, 2)
        assert own is not None and own.shape == (2, 4)
        chunk = own.rows(hidden[4 * rank : 4 * rank + 4])
        assert chunk is not None and rows is not None
        for key, row in zip(own.keys, chunk, strict=True):
            assert torch.equal(row, rows[(whole.keys == key).nonzero().item()])
        seen += own.keys.tolist()
    assert sorted(seen) == sorted(whole.keys.tolist())


def test_rows_that_no_chunk_divides_have_none() -> None:
    assert part(tokens_of(IDS), 0, 3) is None
    assert part(tokens_of(IDS), 0, 1) is None


def test_flattened_tokens_of_megatron_are_sequence_first() -> None:
    tokens, hidden = tokens_of(IDS), torch.randn(8, 2, 3)
    found = tokens.rows(hidden.flatten(0, 1), sequence_first=True)
    assert found is not None and torch.equal(found, hidden.transpose(0, 1).flatten(0, 1))


def test_megatrons_mask_tells_padding_by_what_does_not_see_itself() -> None:
    attended = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    seen = causal & attended[:, None, :].bool() & attended[:, :, None].bool()
    own, other = tokens_of(IDS, attended), tokens_of(IDS, ~seen[:, None])
    assert own.keys.tolist() == other.keys.tolist()


@pytest.mark.parametrize("zigzag", [True, False])
def test_ranks_that_share_rows_know_the_prefix_of_their_tokens(zigzag: bool) -> None:
    ids = torch.arange(16).reshape(2, 8)  # every id another, so that an id tells its place
    keys = dict(zip(ids.flatten().tolist(), tokens_of(ids).keys.tolist(), strict=True))
    # by Megatron's get_batch_on_this_cp_rank: chunks 0 and 3 of 4, then 1 and 2
    places = [[0, 1, 6, 7], [2, 3, 4, 5]] if zigzag else [[0, 1, 2, 3], [4, 5, 6, 7]]
    parts = [ids[:, place] for place in places]
    for rank in range(2):
        shared = SharedSequences(rank, 2, lambda _: parts, zigzag)
        (own,) = tokens_of_pass((parts[rank],), {}, shared)
        assert own.keys.tolist() == [keys[i] for i in parts[rank].flatten().tolist()]


def test_shared_packed_rows_are_cut_one_by_one_and_lose_their_padding() -> None:
    lengths = (5, 8)  # tokens, in eight places each, which four chunks divide
    ids = torch.arange(16)[None]
    packed = SimpleNamespace(
        cu_seqlens_q=torch.tensor([0, 5, 13]), cu_seqlens_q_padded=torch.tensor([0, 8, 16])
    )
    places = [[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]
    parts = [ids[:, place] for place in places]
    rows = [torch.arange(length)[None] + 8 * row for row, length in enumerate(lengths)]
    keys = {
        token: key
        for row in rows
        for token, key in zip(row[0].tolist(), tokens_of(row).keys.tolist(), strict=True)
    }
    for rank in range(2):
        shared = SharedSequences(rank, 2, lambda _: parts)
        (own,) = tokens_of_pass((), {"input_ids": parts[rank], "packed_seq_params": packed}, shared)
        assert own.keys.tolist() == [keys[i] for i in parts[rank][0].tolist() if i in keys]
