"""Tokens keyed by the sequences that a model's packed or padded ids are made of."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import Tensor

from dumps.capture.sketch.local import SharedSequences
from dumps.capture.sketch.pass_tokens import tokens_of_pass
from dumps.capture.sketch.token_keys import Tokens, tokens_of

LENGTHS = (5, 8, 3)
# zeros, which padding looks like, are tokens too
ROWS = [torch.arange(length) * 0 ** (i == 2) + 7 * i for i, length in enumerate(LENGTHS)]
SEQUENCES = torch.nested.as_nested_tensor(ROWS, layout=torch.jagged)


def by_id() -> dict[tuple[int, int], int]:
    """Return each token's key by row and place, by keying every row alone."""
    return {
        (row, place): key
        for row, ids in enumerate(ROWS)
        for place, key in enumerate(tokens_of(ids[None]).keys.tolist())
    }


Places = list[tuple[int, int]]


def packed(multiple: int, further: int = 0) -> tuple[Tensor, SimpleNamespace, Places]:
    """Return ids [1, t] with each row padded to a multiple, as verl's preprocess_thd_engine does.

    Args:
        further: padding of the last row on top, as a bucket of lengths has it.

    Returns:
        the ids, packed_seq_params, and row and place of every place, -1 at padding.
    """
    ids: list[int] = []
    places: Places = []
    bounds = [0]
    for number, row in enumerate(ROWS):
        padding = -len(row) % multiple + further * (number == len(ROWS) - 1)
        ids += [*row.tolist(), *[0] * padding]
        places += [(number, place) for place in range(len(row))] + [(-1, -1)] * padding
        bounds.append(len(ids))
    ends = torch.tensor(bounds, dtype=torch.int32)
    # verl says the padded bounds twice, so that the lengths are lost
    params = SimpleNamespace(cu_seqlens_q=ends, cu_seqlens_q_padded=ends)
    return torch.tensor([ids]), params, places


def keys_by_place(tokens: Tokens) -> dict[int, int]:
    index = torch.arange(len(tokens.keys)) if tokens.index is None else tokens.index
    return dict(zip(index.tolist(), tokens.keys.tolist(), strict=True))


@pytest.mark.parametrize("is_given_ids", [True, False], ids=["first stage", "later stage"])
@pytest.mark.parametrize(("multiple", "further"), [(1, 0), (2, 0), (4, 12)])
def test_packed_sequences_lose_their_padding(
    multiple: int, further: int, is_given_ids: bool
) -> None:
    ids, params, places = packed(multiple, further)
    called = {"input_ids": ids if is_given_ids else SEQUENCES, "packed_seq_params": params}
    (tokens,) = tokens_of_pass((), {**called, "sequences": SEQUENCES})
    assert tokens.shape == (1, ids.shape[1])
    known = by_id()
    expected = {at: known[where] for at, where in enumerate(places) if where in known}
    assert keys_by_place(tokens) == expected
    assert tokens.fits(torch.zeros(ids.shape[1], 1, 6))


def test_without_the_sequences_padding_would_be_tokens() -> None:
    """What verl calls its model with does not say where a sequence ends."""
    ids, params, _ = packed(4)
    (tokens,) = tokens_of_pass((), {"input_ids": ids, "packed_seq_params": params})
    assert len(tokens.keys) == ids.shape[1] > sum(LENGTHS)


def test_padded_rows_lose_their_padding() -> None:
    ids = torch.nn.utils.rnn.pad_sequence(ROWS, batch_first=True)
    (tokens,) = tokens_of_pass((), {"input_ids": ids, "sequences": SEQUENCES})
    known = by_id()
    assert tokens.shape == (3, 8)
    assert keys_by_place(tokens) == {8 * row + place: key for (row, place), key in known.items()}


@pytest.mark.parametrize("is_given_ids", [True, False], ids=["first stage", "later stage"])
def test_ranks_that_share_packed_sequences_gather_nothing(is_given_ids: bool) -> None:
    ids, params, places = packed(4)
    bounds = params.cu_seqlens_q.tolist()
    seen: dict[tuple[int, int], int] = {}
    for rank in range(2):
        shared = SharedSequences(rank, 2, lambda _: pytest.fail("gathered"))
        own = torch.cat(  # by Megatron's way: chunks r and 3 - r of 4, of each sequence
            [
                torch.arange(start, end).chunk(4)[chunk]
                for start, end in pairwise(bounds)
                for chunk in (rank, 3 - rank)
            ]
        )
        called = {"input_ids": ids[:, own] if is_given_ids else SEQUENCES}
        given = {**called, "packed_seq_params": params, "sequences": SEQUENCES}
        (tokens,) = tokens_of_pass((), given, shared)
        assert tokens.shape == (1, len(own))
        seen |= {places[own[at]]: key for at, key in keys_by_place(tokens).items()}
    assert seen == by_id()
