"""Our objective against MindSpeed-RL's source, value by value and gradient by gradient."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="parity with MindSpeed-RL needs torch")

import torch

from align.objective import kl, masked, mindspeed_rl
from align.objective.errors import ObjectiveError
from align.objective.value_loss import clipped_value_loss
from tests.frameworks.mindspeed_rl.source import PACKAGE, load
from tests.frameworks.parity import EVERY_BATCH, Batch, gradient
from tests.frameworks.parity import agree as _agree

functional, compute, compute_utils, grpo, dapo, ppo, critic = load(
    "utils.torch_functional",
    "utils.compute",
    "trainer.utils.compute_utils",
    "models.loss.grpo_actor_loss_func",
    "models.loss.dapo_actor_loss_func",
    "models.loss.ppo_actor_loss_func",
    "models.loss.critic_loss_func",
)


def agree(function: str, ours, theirs, tolerance: float = 1e-6) -> None:
    _agree(PACKAGE, function, ours, theirs, tolerance)


def _same_loss(name: str, ours, result, theirs, metrics: tuple, pairs: tuple) -> None:
    agree(name, result.loss, metrics[0])
    agree(f"{name} gradient", *gradient(result.loss, ours), *gradient(metrics[0], theirs))
    for ours_metric, index in pairs:
        agree(f"{name} metrics", ours_metric, metrics[index])
    assert result.logged_pg_loss == pytest.approx(abs(metrics[0].item()), rel=1e-6, nan_ok=True)


@EVERY_BATCH
@pytest.mark.parametrize("penalty", ["kl", "abs", "mse", "low_var_kl"])
@pytest.mark.parametrize("first_update", [False, True])
@pytest.mark.parametrize("entropy_coefficient", [0.0, 0.01])
def test_grpo_loss_agrees(
    batch: Batch, penalty: str, first_update: bool, entropy_coefficient: float
) -> None:
    ours, theirs = batch.leaf(), batch.leaf()
    old = None if first_update else batch.old_log_prob
    entropy = batch.values.abs()
    result = mindspeed_rl.grpo_loss(
        ours,
        old,
        batch.ref_log_prob,
        batch.advantages,
        batch.mask,
        clip_ratio=0.2,
        kl_penalty=penalty,
        kl_coefficient=0.05,
        entropy=entropy,
        entropy_coefficient=entropy_coefficient,
    )
    reference = grpo.GRPOActorLossFunc._compute_grpo_policy_loss(
        old,
        theirs,
        batch.ref_log_prob,
        batch.advantages,
        entropy,
        batch.mask,
        0.2,
        SimpleNamespace(value=0.05),
        penalty,
        entropy_coefficient,
    )
    pairs = (
        (result.clip_fraction, 1),
        (result.approx_kl, 2),
        (result.kl_loss, 3),
        (result.entropy, 4),
    )
    _same_loss("_compute_grpo_policy_loss", ours, result, theirs, reference, pairs)


@EVERY_BATCH
@pytest.mark.parametrize("token_level", [True, False])
@pytest.mark.parametrize("entropy_coefficient", [0.0, 0.01])
def test_dapo_loss_agrees(batch: Batch, token_level: bool, entropy_coefficient: float) -> None:
    ours, theirs = batch.leaf(), batch.leaf()
    entropy = batch.values.abs()
    result = mindspeed_rl.dapo_loss(
        ours,
        batch.old_log_prob,
        batch.advantages,
        batch.mask,
        clip_ratio_low=0.1,
        clip_ratio_high=0.28,
        token_level_loss=token_level,
        entropy=entropy,
        entropy_coefficient=entropy_coefficient,
    )
    reference = dapo.DAPOActorLossFunc._compute_dapo_policy_loss(
        batch.old_log_prob,
        theirs,
        entropy,
        entropy_coefficient,
        batch.advantages,
        batch.mask,
        0.1,
        0.28,
        token_level,
    )
    pairs = ((result.clip_fraction, 1), (result.approx_kl, 2), (result.entropy, 4))
    _same_loss("_compute_dapo_policy_loss", ours, result, theirs, reference, pairs)


@EVERY_BATCH
def test_ppo_loss_agrees_with_dapo_of_equal_clips(batch: Batch) -> None:
    ours, theirs = batch.leaf(), batch.leaf()
    result = mindspeed_rl.dapo_loss(ours, batch.old_log_prob, batch.advantages, batch.mask)
    reference = ppo.PPOActorLossFunc._compute_ppo_policy_loss(
        batch.old_log_prob,
        theirs,
        batch.advantages,
        batch.mask,
        0.2,
        torch.zeros_like(batch.log_prob),
        0.0,
    )
    pairs = ((result.clip_fraction, 1), (result.approx_kl, 2), (result.entropy, 3))
    _same_loss("_compute_ppo_policy_loss", ours, result, theirs, reference, pairs)


@EVERY_BATCH
@pytest.mark.parametrize("penalty", ["kl", "abs", "mse", "low_var_kl"])
def test_kl_estimators_agree(batch: Batch, penalty: str) -> None:
    ours = kl.kl_estimate(batch.log_prob, batch.ref_log_prob, penalty)
    theirs = compute.compute_kl_penalty(batch.log_prob, batch.ref_log_prob, penalty)
    agree(f"compute_kl_penalty {penalty}", ours, theirs)


@EVERY_BATCH
def test_value_loss_agrees(batch: Batch) -> None:
    if 1 in batch.values.shape:
        return  # its squeeze() drops the row or the column, and broadcasts
    ours, theirs = batch.leaf("rewards"), batch.leaf("rewards")
    result = clipped_value_loss(
        ours,
        batch.values,
        batch.advantages,
        batch.mask,
        cliprange_value=0.5,
    )
    loss, fraction = critic.CriticLossFunc._compute_value_loss(
        theirs.unsqueeze(-1), batch.advantages, batch.values, batch.mask, 0.5
    )
    if not int(batch.mask.sum()):
        assert loss.item() == 0.0 and bool(result.loss.isnan())  # 0/(0 + 1e-8) against verl's 0/0
        return
    agree("_compute_value_loss", result.loss, loss)
    agree("_compute_value_loss gradient", *gradient(result.loss, ours), *gradient(loss, theirs))
    agree("_compute_value_loss metrics", result.clip_fraction, fraction)


@EVERY_BATCH
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5)])
def test_gae_with_whitening_agrees(batch: Batch, gamma: float, lam: float) -> None:
    ours, returns = mindspeed_rl.gae(batch.rewards, batch.values, gamma=gamma, lam=lam)
    arguments = (batch.rewards, batch.values, batch.mask, gamma, lam)
    if not int(batch.mask.sum()):
        with pytest.raises(ValueError, match="At least one"):
            compute_utils.compute_gae_advantage_return(*arguments)
        with pytest.raises(ObjectiveError, match="no counting token"):
            mindspeed_rl.whiten(ours, batch.mask)
        return
    theirs, their_returns = compute_utils.compute_gae_advantage_return(*arguments)
    agree("compute_gae_advantage_return returns", returns, their_returns)
    agree("compute_gae_advantage_return", mindspeed_rl.whiten(ours, batch.mask), theirs)


@pytest.mark.parametrize(
    ("scores", "size"),
    [
        ([0.3, -1.2, 2.0, 0.7, 0.1, 0.4], 3),
        ([0.3, -1.2, 2.0, 0.7, 0.1, 0.4], 2),
        ([1.0, 1.0, 0.0, 0.0], 2),
        ([0.9, 0.9, 0.9], 3),
        ([0.3, 1.0], 1),
        ([float("nan"), 1.0, 0.0, 1.0], 2),
    ],
)
def test_group_norm_advantages_agree(scores: list[float], size: int) -> None:
    values = torch.tensor(scores)
    lengths = torch.arange(len(scores)) % 4
    mask = (torch.arange(4) < lengths[:, None]).long()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.tensor(tensor), and the std of one value
        theirs, _ = compute_utils.compute_group_norm_advantage_return(
            values[:, None], mask, lengths[:, None], size
        )
        ours = mindspeed_rl.group_norm_advantages(values, mask, size)
    assert ours.dtype == theirs.dtype
    agree("compute_group_norm_advantage_return", ours, theirs)


@EVERY_BATCH
def test_masked_mean_agrees(batch: Batch) -> None:
    ours = masked.masked_mean(batch.values, batch.mask)
    agree("masked_mean", ours, functional.masked_mean(batch.values, batch.mask))
