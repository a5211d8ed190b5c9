"""The advantages we recompute against those of the installed verl, estimator by estimator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("torch", reason="parity with verl needs torch")
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos

from align.rollout.estimators import ESTIMATORS, Settings
from align.rollout.group_advantages import Scaling
from tests.frameworks.verl.real import agree

FLOAT64 = 1e-7  # verl divides by the number of tokens plus 1e-8, and by a float32 1 + 1e-6
FLOAT32 = 1e-5  # grpo_vectorized rounds to it; gpg its number of rows over scores
ROUNDED = ("grpo_vectorized", "gpg")
NEVER_ALONE = ("grpo_passk",)  # refuses a group of one
REFUSES_ONE_TOKEN = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
NOT_OURS = {
    "gae",  # align.referee.estimates
    "remax",  # needs the rewards of greedy responses
    "gdpo",  # needs every component of the reward
    "optimal_token_baseline",  # needs the probabilities of the whole vocabulary
    "tir_optimal_token_baseline",
}


@dataclass(frozen=True)
class Drawn:
    """float64 rewards and int64 mask, [b, r]; groups, [b], in any order of rows."""

    rewards: np.ndarray
    mask: np.ndarray
    groups: np.ndarray


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    generator.shuffle(groups)
    groups = np.unique(groups, return_inverse=True)[1]
    count, width = len(groups), draw(st.integers(2, 7))
    lengths = generator.integers(1, width + 1, count)
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    if draw(st.booleans()):  # observations between a response's tokens
        mask &= generator.random(mask.shape) < 0.7
    levels = draw(st.sampled_from([1, 2, 3, 1000]))  # 1: all scores are equal
    scores = generator.integers(0, levels, count) / 4 + draw(st.sampled_from([0.0, 0.5]))
    rewards = np.zeros((count, width))
    rewards[np.arange(count), lengths - 1] = scores
    if draw(st.booleans()):  # a KL penalty of every token
        rewards -= generator.random(rewards.shape) * 0.1 * mask
    return Drawn(rewards, mask, groups)


def of_verl(name: str, batch: Drawn, own: Settings) -> torch.Tensor:
    return core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=torch.from_numpy(batch.rewards.copy()),
        response_mask=torch.from_numpy(batch.mask),
        index=np.array([f"uid {group}" for group in batch.groups], dtype=object),
        config=AlgoConfig(
            gamma=own.gamma, norm_adv_by_std_in_grpo=own.scaling.by_std, adv_estimator=name
        ),
        **({"norm_adv_by_std_in_grpo": own.scaling.by_std} if name.startswith("grpo") else {}),
    )[0]


def ours(name: str, batch: Drawn, own: Settings) -> np.ndarray:
    mask = batch.mask.astype(np.float64)
    return ESTIMATORS[name].advantages(batch.rewards, mask, batch.groups, own)


def test_every_estimator_of_verl_is_recomputed_or_left_out_by_name() -> None:
    assert {each.value for each in core_algos.AdvantageEstimator} == NOT_OURS | set(ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=150, deadline=None)
@given(
    batch=drawn(),
    by_std=st.booleans(),
    gamma=st.sampled_from([1.0, 0.97, 0.5, 0.0]),
)
def test_advantages_agree(name: str, batch: Drawn, by_std: bool, gamma: float) -> None:
    own = Settings(Scaling(by_std), gamma)
    mine = ours(name, batch, own)
    own_token = batch.mask > 0
    refused = np.full(len(batch.mask), name in REFUSES_ONE_TOKEN and own_token.sum() < 2)
    if name in NEVER_ALONE:
        refused |= (np.bincount(batch.groups) == 1)[batch.groups]
    if refused.any():
        with pytest.raises(ValueError, match=r"at least 2 samples|At least one|mask is one"):
            of_verl(name, batch, own)
        assert np.isnan(mine[refused[:, None] & own_token]).all()
        return
    theirs = of_verl(name, batch, own).numpy()
    assert not mine[~own_token].any()  # where verl's opo is NaN beside a group of no token
    known = own_token & ~np.isnan(mine)  # NaN: rounding divided by rounding
    if np.isnan(mine).any():
        assert own.scaling.by_std or name in REFUSES_ONE_TOKEN
    agree(
        f"estimator {name}",
        torch.from_numpy(mine[known]),
        torch.from_numpy(theirs[known]),
        FLOAT32 if name in ROUNDED else FLOAT64,
    )


@pytest.mark.parametrize(
    "name", [name for name, estimator in ESTIMATORS.items() if not estimator.by_token]
)
@settings(max_examples=50, deadline=None)
@given(batch=drawn())
def test_one_column_with_the_number_of_tokens_gives_the_same(name: str, batch: Drawn) -> None:
    whole = ours(name, batch, Settings())
    columns = Drawn(batch.rewards.sum(1)[:, None], batch.mask.sum(1)[:, None], batch.groups)
    column = np.broadcast_to(ours(name, columns, Settings()), whole.shape)
    own = batch.mask > 0
    np.testing.assert_allclose(column[own], whole[own], rtol=1e-9, atol=1e-9)
