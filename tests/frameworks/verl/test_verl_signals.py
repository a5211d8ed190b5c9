"""Our advantages, weights, filters and schedules against the installed verl, value by value."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="parity with verl needs torch")
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")

import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer, rollout_corr_helper
from verl.trainer.ppo.v1 import replay_buffer
from verl.utils import torch_functional
from verl.workers.reward_manager.dapo import DAPORewardManager

from align.frameworks import schedules
from align.objective import advantages, dapo, gae, kl, masked
from align.objective.errors import ObjectiveError
from align.objective.importance_sampling import (
    RatioLevel,
    effective_sample_fraction,
    rollout_weights,
)
from tests.frameworks.parity import EVERY_BATCH, EVERY_SCORING, Batch
from tests.frameworks.verl.real import agree


@pytest.mark.parametrize("current", [0.0, 0.05, 0.1, 0.101, 7.0, float("nan")])
def test_the_adaptive_kl_controller_agrees(current: float) -> None:
    controller = core_algos.AdaptiveKLController(0.02, target_kl=0.1, horizon=10000)
    controller.update(current, n_steps=128)
    ours = kl.next_kl_coefficient(0.02, current, target=0.1, horizon=10000, num_steps=128)
    agree("AdaptiveKLController.update", ours, controller.value, 1e-15)


@EVERY_BATCH
def test_kl_in_the_reward_agrees(batch: Batch) -> None:
    tensors = {
        "response_mask": batch.mask,
        "token_level_scores": batch.rewards,
        "old_log_probs": batch.old_log_prob,
        "ref_log_prob": batch.ref_log_prob,
    }
    data = DataProto(batch=TensorDict(tensors, batch_size=[len(batch.mask)]))
    data, _ = ray_trainer.apply_kl_penalty(data, core_algos.FixedKLController(0.05), "low_var_kl")
    estimate = kl.kl_estimate(batch.old_log_prob, batch.ref_log_prob, "low_var_kl")
    ours = gae.penalise_kl(batch.rewards, estimate, batch.mask, 0.05)
    agree("apply_kl_penalty", ours, data.batch["token_level_rewards"])


@EVERY_SCORING
@pytest.mark.parametrize("by_std", [True, False])
def test_grpo_agrees(scored, by_std: bool) -> None:
    scores, groups = torch.tensor(scored[0]), torch.tensor(scored[1])
    mask = (torch.arange(5) < (torch.arange(len(scores)) % 6)[:, None]).long()
    rewards = torch.zeros(len(scores), 5)
    rewards[:, 2] = scores
    uids = np.array([f"uid{g}" for g in scored[1]], dtype=object)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        rewards, mask, uids, norm_adv_by_std_in_grpo=by_std
    )
    ours = advantages.grpo(scores, mask, groups, normalise_by_std=by_std)
    agree(f"compute_grpo_outcome_advantage std={by_std}", ours, theirs)
    assert torch.equal(advantages.group_by_uid(list(uids)), groups)


@EVERY_SCORING
def test_rloo_agrees(scored) -> None:
    scores, groups = torch.tensor(scored[0]), torch.tensor(scored[1])
    mask = torch.ones(len(scores), 3, dtype=torch.long)
    mask[0] = 0
    rewards = torch.zeros(len(scores), 3)
    rewards[:, 1] = scores
    theirs, _ = core_algos.compute_rloo_outcome_advantage(rewards, mask, np.array(scored[1]))
    agree("compute_rloo_outcome_advantage", advantages.rloo(scores, mask, groups), theirs)


@EVERY_BATCH
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (0.0, 0.0)])
def test_gae_with_whitening_agrees(batch: Batch, gamma: float, lam: float) -> None:
    arguments = (batch.rewards, batch.values, batch.mask)
    ours, returns = gae.gae(*arguments, gamma=gamma, lam=lam)
    if int(batch.mask.sum()) < 2:
        with pytest.raises(ValueError, match="mask"):
            core_algos.compute_gae_advantage_return(*arguments, gamma, lam)
        with pytest.raises(ObjectiveError, match="no variance"):
            masked.whiten(ours, batch.mask)
        return
    theirs, their_returns = core_algos.compute_gae_advantage_return(*arguments, gamma, lam)
    agree("compute_gae_advantage_return returns", returns, their_returns)
    agree("compute_gae_advantage_return", masked.whiten(ours, batch.mask), theirs)


@EVERY_BATCH
def test_masked_statistics_agree(batch: Batch) -> None:
    values = batch.values.clone()
    values[batch.mask == 0] = float("nan")
    for dim in (None, -1, 0):
        ours = masked.masked_mean(values, batch.mask, dim)
        agree("masked_mean", ours, torch_functional.masked_mean(values, batch.mask, dim))
        ours = masked.masked_sum(values, batch.mask, dim)
        agree("masked_sum", ours, torch_functional.masked_sum(values, batch.mask, dim))
    if int(batch.mask.sum()) > 1:
        for shift in (True, False):
            ours = masked.whiten(values, batch.mask, shift_mean=shift)
            agree("masked_whiten", ours, torch_functional.masked_whiten(values, batch.mask, shift))


@EVERY_BATCH
@pytest.mark.parametrize("level", RatioLevel)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("bounds", [(None, 2.0), (None, 1.0), (0.5, 2.0), (0.99, 1.01)])
def test_rollout_weights_agree(batch: Batch, level: RatioLevel, normalise: bool, bounds) -> None:
    lower, upper = bounds
    ours = rollout_weights(
        batch.log_prob,
        batch.old_log_prob,
        batch.mask,
        level,
        upper=upper,
        lower=lower,
        normalise=normalise,
    )
    arguments = (
        batch.log_prob - batch.old_log_prob,
        batch.mask,
        level.value,
        upper if lower is None else f"{lower}_{upper}",
        normalise,
    )
    if not int(batch.mask.sum()):
        with pytest.raises(ValueError, match="at least one valid token"):
            rollout_corr_helper.compute_rollout_correction_weights(*arguments)
        assert not bool(ours.any())
        return
    if not bool(ours.any()):  # verl trips over the effective sample size of all-zero weights
        with pytest.raises(ZeroDivisionError):
            rollout_corr_helper.compute_rollout_correction_weights(*arguments)
        return
    theirs, metrics = rollout_corr_helper.compute_rollout_correction_weights(*arguments)
    agree(f"compute_rollout_correction_weights {level.value}", ours, theirs)
    if not normalise:
        size = metrics["rollout_is_eff_sample_size"]
        agree("rollout_is_eff_sample_size", effective_sample_fraction(ours, batch.mask), size, 1e-5)


def _overlong(lengths: list[int], longest: int, buffer: int, factor: float):
    """Ask verl's reward manager for the reward of responses that score 0 without the penalty."""
    tokenizer = SimpleNamespace(decode=lambda *_, **__: "", eos_token="<eos>")
    manager = DAPORewardManager(
        tokenizer,
        num_examine=0,
        compute_score=lambda **_: 0.0,
        max_resp_len=longest,
        overlong_buffer_cfg=SimpleNamespace(
            enable=True, len=buffer, penalty_factor=factor, log=False
        ),
    )
    width = max(lengths)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    count = len(lengths)
    data = DataProto(
        batch=TensorDict(
            {
                "prompts": torch.ones(count, 1, dtype=torch.long),
                "responses": torch.ones(count, width, dtype=torch.long),
                "attention_mask": torch.cat([torch.ones(count, 1, dtype=torch.long), mask], 1),
            },
            batch_size=[count],
        ),
        non_tensor_batch={
            "reward_model": np.array([{"ground_truth": ""}] * count, dtype=object),
            "data_source": np.array(["x"] * count, dtype=object),
            "extra_info": np.array([{}] * count, dtype=object),
        },
    )
    return manager(data).sum(-1)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_overlong_penalty_agrees_beyond_the_maximum_too(factor: float) -> None:
    lengths = [1, 10, 15, 16, 17, 19, 20, 21, 26]
    theirs = _overlong(lengths, 20, 5, factor)
    ours = dapo.overlong_penalty(
        torch.tensor(lengths), max_response_length=20, buffer_length=5, penalty_factor=factor
    )
    agree("DAPORewardManager overlong", ours, theirs)


@pytest.mark.parametrize(
    "groups",
    [
        {"a": [1.0, 0.0], "b": [1.0, 1.0], "c": [0.0]},
        {"a": [0.1, 0.1, 0.1], "b": [0.3, 0.3], "c": [float("nan"), float("nan")]},
        {"a": [1e30, 1e30], "b": [1.0, 1.0 + 1e-12], "c": [float("nan"), 1.0]},
    ],
)
def test_dynamic_sampling_drops_the_groups_verl_drops(
    groups: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(uid, value) for uid, values in groups.items() for value in values]
    extras = [{"reward_extra_info": {"acc": value}} for _, value in rows]
    monkeypatch.setattr(
        replay_buffer, "tq", SimpleNamespace(kv_batch_get=lambda **_: {"extra_fields": extras})
    )
    state = SimpleNamespace(
        filter_groups_metric="acc",
        finished_keys={"train": set(groups)},
        partitions={"train": [f"{uid}_{i}_0" for i, (uid, _) in enumerate(rows)]},
        _dapo_classification_cache=defaultdict(dict),
    )
    dropped, counts = replay_buffer.ReplayBuffer._dapo_filtered_keys(state, "train")
    assert isinstance(counts, Counter)
    metric = torch.tensor([value for _, value in rows], dtype=torch.float64)
    kept = dapo.has_signal(metric, advantages.group_by_uid([uid for uid, _ in rows]))
    assert [uid not in dropped for uid, _ in rows] == kept.tolist()


def _lr(make, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-6)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_learning_rates_agree_at_every_step(warmup: int) -> None:
    theirs = _lr(lambda o: torch_functional.get_constant_schedule_with_warmup(o, warmup), 30)
    ours = [schedules.verl_lr(k, lr=1e-6, num_warmup_steps=warmup) for k in range(30)]
    agree("get_constant_schedule_with_warmup", np.array(ours), np.array(theirs), 1e-18)
    settings: list[dict[str, Any]] = [
        {},
        {"min_lr_ratio": 0.1},
        {"init_lr_ratio": 0.3, "zero_indexed_step": False},
        {"num_cycles": 1.5, "min_lr_ratio": 0.05},
    ]
    for extra in settings:
        cosine = torch_functional.get_cosine_schedule_with_warmup
        theirs = _lr(lambda o, cosine=cosine, extra=extra: cosine(o, warmup, 25, **extra), 30)
        ours = [
            schedules.verl_lr(
                k, lr=1e-6, style="cosine", num_warmup_steps=warmup, num_training_steps=25, **extra
            )
            for k in range(30)
        ]
        agree("get_cosine_schedule_with_warmup", np.array(ours), np.array(theirs), 1e-18)
