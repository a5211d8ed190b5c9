"""Where trainer and rollout log_probs differ: one off, at first tokens or chunk ends alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="the referee reads tensors")

from align.referee.probability_link import place_of, shape_of
from align.referee.probability_places import context_parallel_size, first_tokens, shift_of

ROWS, PROMPT, RESPONSE = 24, 32, 96
Arrays = tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


def batch(seed: int) -> Arrays:
    """Give log_probs of rows padded on both sides: values, response tokens, all tokens."""
    rng = np.random.default_rng(seed)
    values = np.log(rng.uniform(0.05, 1, (ROWS, RESPONSE)))
    column = np.arange(PROMPT + RESPONSE)
    first = rng.integers(0, PROMPT - 1, ROWS)[:, None]
    last = PROMPT + rng.integers(RESPONSE // 2, RESPONSE + 1, ROWS)[:, None]
    attention = (column >= first) & (column < last)
    return values, attention[:, PROMPT:], attention


def rounded(values: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    """Add the noise of a bfloat16 engine."""
    return values + 0.004 * np.random.default_rng(seed + 99).standard_normal(values.shape)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shift", [-1, 1])
def test_log_probs_that_are_one_token_off_are_named_with_their_direction(
    seed: int, shift: int
) -> None:
    rollout, own, _ = batch(seed)
    trainer = rounded(np.roll(rollout, shift, axis=1), seed)  # the trainer's j + shift is j
    assert shift_of(trainer, rollout, own) == shift
    assert f"j {shift:+d}" in shape_of(trainer, rollout, own).en


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("is_packed", [False, True])
def test_the_size_of_context_parallelism_is_read_off_its_chunk_ends(
    seed: int, size: int, is_packed: bool
) -> None:
    rollout, own, attention = batch(seed)
    trainer = rounded(rollout, seed)
    for row in range(ROWS):
        tokens = np.flatnonzero(attention[row]) if is_packed else np.arange(PROMPT + RESPONSE)
        chunk = -(-len(tokens) // (2 * size))
        for column in tokens[chunk::chunk]:
            if column >= PROMPT:
                trainer[row, column - PROMPT] -= 1.5
    assert context_parallel_size(trainer - rollout, own, attention) == size
    said = place_of(trainer - rollout, own, attention)
    assert said is not None and f"{2 * size} equal chunks" in said.en


@pytest.mark.parametrize("seed", range(5))
def test_rounding_heavy_tails_and_a_temperature_are_neither(seed: int) -> None:
    rollout, own, attention = batch(seed)
    tails = rollout + 0.01 * np.random.default_rng(seed).standard_t(2, rollout.shape)
    for trainer in (rounded(rollout, seed), tails, rounded(rollout / 1.3, seed)):
        assert shift_of(trainer, rollout, own) is None
        assert place_of(trainer - rollout, own, attention) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("by", [-1.5, 1.5])
def test_a_first_token_that_alone_differs_is_named_whichever_way(seed: int, by: float) -> None:
    rollout, own, attention = batch(seed)
    trainer = rounded(rollout, seed)
    trainer[:, 0] += by
    assert first_tokens(trainer - rollout, own) == pytest.approx(1.5, abs=0.01)
    said = place_of(trainer - rollout, own, attention)
    assert said is not None and "first token alone" in said.en
