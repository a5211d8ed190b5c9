"""Loss aggregation against an explicit loop in plain Python, in float64."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the objective functions need torch")

import torch

from align.objective.accumulate import normalised_by_micro_batch, normalised_globally
from align.objective.aggregate import GlobalBatch, LossAggregation, aggregate, aggregate_verl_0_4
from align.objective.errors import ObjectiveError
from align.objective.masked import masked_mean, masked_variance, whiten

Rows = list[list[tuple[float, bool]]]
SINCE_0_4 = [mode for mode in LossAggregation if mode is not LossAggregation.TOKEN_SUM]


@st.composite
def matrices(draw: st.DrawFn) -> Rows:
    """Draw rows of (loss, counts)."""
    width = draw(st.integers(1, 5))
    cell = st.tuples(st.floats(-100, 100, allow_subnormal=False), st.booleans())
    return draw(st.lists(st.lists(cell, min_size=width, max_size=width), min_size=1, max_size=5))


def tensors(rows: Rows):
    losses = torch.tensor([[loss for loss, _ in row] for row in rows], dtype=torch.float64)
    return losses, torch.tensor([[counts for _, counts in row] for row in rows])


def by_hand(rows: Rows, mode: LossAggregation, batch: GlobalBatch) -> float:
    kept = [[loss for loss, counts in row if counts] for row in rows]
    num_tokens = batch.num_tokens or sum(map(len, kept))
    num_rows = batch.num_sequences or sum(1 for row in kept if row)
    if mode is LossAggregation.TOKEN_SUM:
        return math.fsum(map(math.fsum, kept)) * batch.dp_size
    if mode is LossAggregation.TOKEN_MEAN:
        total, count = math.fsum(map(math.fsum, kept)), num_tokens
    elif mode is LossAggregation.SEQ_MEAN_TOKEN_MEAN:
        total, count = math.fsum(math.fsum(row) / len(row) for row in kept if row), num_rows
    else:
        total, count = math.fsum(map(math.fsum, kept)), num_rows
    if mode is LossAggregation.SEQ_MEAN_TOKEN_SUM_NORM:
        total /= batch.loss_scale_factor or len(rows[0])
    return total / count * batch.dp_size if count else math.nan


@given(
    rows=matrices(),
    mode=st.sampled_from(LossAggregation),
    batch=st.builds(
        GlobalBatch,
        dp_size=st.just(1) | st.just(4),
        num_tokens=st.integers(1, 99),
        num_sequences=st.integers(1, 99),
        loss_scale_factor=st.none() | st.floats(1, 4096),
    )
    | st.just(GlobalBatch()),
)
def test_every_mode_equals_a_loop(rows: Rows, mode: LossAggregation, batch: GlobalBatch) -> None:
    losses, mask = tensors(rows)
    loss = aggregate(losses, mask, mode, batch)
    assert loss.dtype == torch.float64 and loss.shape == ()
    expected = by_hand(rows, mode, batch)
    assert loss.item() == pytest.approx(expected, rel=1e-12, abs=1e-9, nan_ok=True)


@given(rows=matrices(), mode=st.sampled_from(SINCE_0_4))
def test_verl_0_4_counts_empty_rows(rows: Rows, mode: LossAggregation) -> None:
    losses, mask = tensors(rows)
    kept = [[loss for loss, counts in row if counts] for row in rows]
    total = math.fsum(map(math.fsum, kept))
    if mode is LossAggregation.TOKEN_MEAN:
        expected = total / max(sum(map(len, kept)), 1)
    elif mode is LossAggregation.SEQ_MEAN_TOKEN_SUM:
        expected = total / len(rows)
    elif mode is LossAggregation.SEQ_MEAN_TOKEN_SUM_NORM:
        expected = total / len(rows[0])
    elif all(kept):
        expected = math.fsum(math.fsum(row) / len(row) for row in kept) / len(rows)
    else:
        expected = math.nan
    loss = aggregate_verl_0_4(losses, mask, mode).item()
    assert loss == pytest.approx(expected, rel=1e-12, abs=1e-9, nan_ok=True)


def test_verl_0_4_has_no_token_sum() -> None:
    with pytest.raises(ObjectiveError, match="token-sum does not exist"):
        aggregate_verl_0_4(torch.ones(1, 1), torch.ones(1, 1), LossAggregation.TOKEN_SUM)


@pytest.mark.parametrize("mode", LossAggregation)
def test_nothing_to_count_is_nan_except_for_a_sum(mode: LossAggregation) -> None:
    loss = aggregate(torch.ones(2, 3), torch.zeros(2, 3), mode).item()
    assert loss == 0.0 if mode is LossAggregation.TOKEN_SUM else math.isnan(loss)
    known = aggregate(
        torch.ones(2, 3), torch.zeros(2, 3), mode, GlobalBatch(num_tokens=5, num_sequences=2)
    )
    assert known.item() == 0.0


@pytest.mark.parametrize("mode", LossAggregation)
def test_a_nan_that_counts_is_never_hidden(mode: LossAggregation) -> None:
    losses = torch.zeros(2, 3)
    losses[1, 2] = float("nan")
    assert aggregate(losses, torch.ones(2, 3), mode).isnan()
    assert aggregate(losses[:1], torch.ones(1, 3), mode).item() == 0.0


def test_the_modes_differ_where_lengths_do() -> None:
    losses = torch.tensor([[1.0, 1.0, 1.0, 1.0], [5.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
    values = {mode.value: aggregate(losses, mask, mode).item() for mode in LossAggregation}
    assert values == pytest.approx(
        {
            "token-mean": 9 / 5,
            "token-sum": 9.0,
            "seq-mean-token-sum": 9 / 2,
            "seq-mean-token-sum-norm": 9 / 2 / 4,
            "seq-mean-token-mean": 3.0,
        }
    )


@st.composite
def split_matrices(draw: st.DrawFn) -> tuple[Rows, list[int]]:
    rows = draw(matrices())
    cuts = draw(st.sets(st.integers(1, len(rows) - 1))) if len(rows) > 1 else set()
    edges = [0, *sorted(cuts), len(rows)]
    return rows, [b - a for a, b in itertools.pairwise(edges)]


@given(split_matrices(), st.sampled_from(LossAggregation))
def test_since_verl_0_8_the_split_into_micro_batches_does_not_matter(
    case: tuple[Rows, list[int]], mode: LossAggregation
) -> None:
    (rows, sizes), (losses, mask) = case, tensors(case[0])
    split = normalised_globally(losses, mask, mode, sizes).item()
    whole = normalised_globally(losses, mask, mode, [len(rows)]).item()
    assert split == pytest.approx(whole, rel=1e-12, abs=1e-9, nan_ok=True)


def test_before_verl_0_8_and_in_mindspeed_rl_the_split_matters() -> None:
    losses = torch.tensor([[1.0, 1.0, 1.0], [7.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert normalised_by_micro_batch(losses, mask, [2], masked_mean).item() == 10 / 4
    assert normalised_by_micro_batch(losses, mask, [1, 1], masked_mean).item() == (1 + 7) / 2


def test_packed_micro_batches_weigh_by_rows() -> None:
    losses = torch.tensor([[1.0], [1.0], [4.0]])
    mask = torch.ones(3, 1)
    assert normalised_by_micro_batch(losses, mask, [2, 1], masked_mean).item() == 2.5
    dynamic = normalised_by_micro_batch(losses, mask, [2, 1], masked_mean, dynamic=True)
    assert dynamic.item() == 2.0


@pytest.mark.parametrize("sizes", [[], [1], [1, 2], [3, -1], [2, 0]])
def test_sizes_that_do_not_split_the_rows_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ObjectiveError, match="do not split 2 rows"):
        normalised_globally(torch.ones(2, 1), torch.ones(2, 1), LossAggregation.TOKEN_SUM, sizes)


@given(rows=matrices())
def test_whitened_values_have_mean_zero_and_unit_variance(rows: Rows) -> None:
    values, mask = tensors(rows)
    if int(mask.sum()) < 2 or float(values[mask].std()) < 1e-2:
        return
    kept = whiten(values, mask)[mask]
    assert float(kept.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(kept.std()) == pytest.approx(1.0, rel=1e-3)
    shifted = whiten(values, mask, shift_mean=False)[mask]
    assert float(shifted.mean()) == pytest.approx(float(values[mask].mean()), abs=1e-9)


@pytest.mark.parametrize(
    ("count", "said"), [(0, "has 0 counting tokens"), (1, "has 1 counting token,")]
)
def test_a_variance_of_fewer_than_two_values_is_refused(count: int, said: str) -> None:
    mask = torch.arange(3) < count
    with pytest.raises(ObjectiveError, match=said):
        masked_variance(torch.ones(3), mask)
