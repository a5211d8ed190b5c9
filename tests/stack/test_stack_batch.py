"""Batches: padding, masks, positions and rewards as verl lays them out."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
pytest.importorskip("transformers", reason="the bundled stack needs torch and transformers")

import torch

from align.stack.batch import TrainBatch, assemble, concatenate, position_ids_of
from align.stack.config import load_config
from align.stack.rewards import Scores
from align.stack.rollout import Response
from align.stack.tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PAD = TOKENIZER.pad_token_id
CONFIG = load_config(
    None,
    ["data.max_prompt_length=4", "data.max_response_length=3", "actor_rollout_ref.rollout.n=2"],
)


def _response(row: int, prompt, ids) -> Response:
    return Response(row, tuple(prompt), tuple(ids), "", (-0.5,) * len(ids), "stop")


def _batch() -> TrainBatch:
    responses = [
        _response(5, [1, 2], [7, 8]),
        _response(5, [1, 2], [7, PAD, 9]),
        _response(6, [1, 2, 3, 4], []),
        _response(6, [1, 2, 3, 4], [9]),
    ]
    scores = [Scores(total, {}) for total in (1.0, 0.5, 0.25, -1.0)]
    return assemble(responses, scores, TOKENIZER, CONFIG)


def test_prompts_are_padded_left_and_responses_right() -> None:
    batch = _batch()
    assert batch.input_ids.tolist() == [
        [PAD, PAD, 1, 2, 7, 8, PAD],
        [PAD, PAD, 1, 2, 7, PAD, 9],
        [1, 2, 3, 4, PAD, PAD, PAD],
        [1, 2, 3, 4, 9, PAD, PAD],
    ]
    assert batch.responses.tolist() == batch.input_ids[:, 4:].tolist()


def test_masks_follow_lengths_so_a_generated_pad_token_counts() -> None:
    batch = _batch()
    assert batch.response_mask.tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert batch.attention_mask[1].tolist() == [0, 0, 1, 1, 1, 1, 1]


def test_positions_count_attended_tokens_as_verl_counts_them() -> None:
    """The example in verl 0.9.1's agent loop; its function keeps the last number at the right."""
    mask = torch.tensor([[0] * 4 + [1] * 4 + [1] * 11 + [0] * 4])
    want = [0] * 4 + list(range(15)) + [14] * 4
    assert position_ids_of(mask).tolist() == [want]


def test_positions_equal_those_of_the_real_verl() -> None:
    model = pytest.importorskip("verl.utils.model", reason="needs verl")
    mask = (torch.rand(8, 30, generator=torch.Generator().manual_seed(0)) > 0.3).long()
    assert torch.equal(position_ids_of(mask), model.compute_position_id_with_mask(mask))


def test_the_score_stands_at_the_last_generated_token() -> None:
    rewards = _batch().token_level_rewards
    assert rewards.tolist() == [[0, 1, 0], [0, 0, 0.5], [0, 0, 0], [-1, 0, 0]]


def test_rollout_log_probs_are_zero_at_padding() -> None:
    assert _batch().rollout_log_probs[0].tolist() == [-0.5, -0.5, 0.0]


def test_groups_are_the_prompts_and_a_row_asked_twice_makes_two() -> None:
    assert _batch().uid == ("5-0", "5-0", "6-0", "6-0")
    responses = [_response(5, [1], [2])] * 4
    batch = assemble(responses, [Scores(0.0, {})] * 4, TOKENIZER, CONFIG)
    assert batch.uid == ("5-0", "5-0", "5-1", "5-1")


def test_rows_are_chosen_by_slice_or_by_number_and_joined_again() -> None:
    batch = _batch()
    parts = [batch.rows(slice(0, 1)), batch.rows([1, 2]), batch.rows(slice(3, None))]
    joined = concatenate(parts)
    assert [len(part) for part in parts] == [1, 2, 1]
    assert torch.equal(joined.input_ids, batch.input_ids)
    assert joined.uid == batch.uid and joined.advantages is None
    swapped = batch.rows([3, 0])
    assert swapped.index.tolist() == [6, 5] and swapped.uid == ("6-0", "5-0")
