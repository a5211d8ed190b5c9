"""Losses and advantages of each algorithm on two rows, beside `align.objective` and arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="the stack needs torch")
pytest.importorskip("transformers", reason="the stack needs transformers")

import torch

from align.objective.aggregate import GlobalBatch, LossAggregation
from align.objective.gae import gae
from align.objective.kl import kl_estimate
from align.objective.masked import whiten
from align.objective.mindspeed_rl import grpo_loss
from align.objective.policy_loss import Clip, clipped_surrogate, reduce_policy_loss
from align.stack import algorithms
from align.stack.algorithms.dapo import penalise_overlong
from align.stack.batch import TrainBatch
from tests.stack.tiny_run import tiny

# two responses to one prompt, of three and two tokens; the first is right
_MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
_OLD = torch.tensor([[-1.0, -0.5, -0.2], [-0.3, -2.0, 0.0]])
_REF = torch.tensor([[-1.1, -0.5, -0.3], [-0.4, -1.5, 0.0]])
_NEW = torch.tensor([[-0.7, -0.6, -0.2], [-0.9, -1.2, 0.0]])
_ENTROPY = torch.ones(2, 3)
_TOTALS = GlobalBatch(num_tokens=5, num_sequences=2)


def _batch() -> TrainBatch:
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    zeros = torch.zeros(2, 5, dtype=torch.int64)
    return TrainBatch(
        input_ids=zeros,
        attention_mask=torch.cat([torch.ones(2, 2, dtype=torch.int64), _MASK], dim=1),
        position_ids=zeros,
        responses=zeros[:, :3],
        response_mask=_MASK,
        rollout_log_probs=_OLD,
        token_level_rewards=rewards,
        index=torch.tensor([0, 0]),
        uid=("0-0", "0-0"),
        old_log_probs=_OLD,
        ref_log_prob=_REF,
        values=torch.tensor([[0.2, 0.3, 0.4], [0.1, 0.1, 0.0]]),
    )


def test_grpo_is_the_clipped_surrogate_plus_kl_over_all_tokens() -> None:
    config = tiny("actor_rollout_ref.actor.kl_loss_coef=0.1")
    batch = algorithms.advantages(_batch(), config)
    unit = 0.5 / (math.sqrt(0.5) + 1e-6)  # scores 1 and 0: mean 0.5, unbiased std sqrt(0.5)
    assert batch.advantages is not None
    assert batch.advantages.tolist() == [
        pytest.approx([unit] * 3),
        pytest.approx([-unit, -unit, 0.0]),
    ]
    result = algorithms.loss(batch, _NEW, _ENTROPY, config, _TOTALS)
    # ratios e^0.3, e^-0.1, 1 with A > 0 are cut at 1.2; e^-0.6, e^0.8 with A < 0 at 0.8 from below
    tokens = [-unit * 1.2, -unit * math.exp(-0.1), -unit, unit * 0.8, unit * math.exp(0.8)]
    assert result.summed["actor/pg_loss"] == pytest.approx(sum(tokens) / 5, rel=1e-6)
    log_ratios = [-0.4, 0.1, -0.1, 0.5, -0.3]  # reference minus policy
    kl = sum(math.exp(d) - d - 1 for d in log_ratios) / 5
    assert result.summed["actor/kl_loss"] == pytest.approx(kl, rel=1e-5)
    assert float(result.total) == pytest.approx(sum(tokens) / 5 + 0.1 * kl, rel=1e-6)
    direct = reduce_policy_loss(
        clipped_surrogate(_NEW, _OLD, batch.advantages, Clip()),
        _MASK,
        LossAggregation.TOKEN_MEAN,
        _TOTALS,
    )
    assert result.summed["actor/pg_loss"] == float(direct.loss)
    assert result.averaged["actor/pg_clipfrac"] == float(direct.clip_fraction) == pytest.approx(0.4)


def test_micro_batches_add_up_to_the_mini_batch() -> None:
    config = tiny()
    batch = algorithms.advantages(_batch(), config)
    whole = algorithms.loss(batch, _NEW, _ENTROPY, config, _TOTALS)
    parts = [
        algorithms.loss(batch.rows([i]), _NEW[[i]], _ENTROPY[[i]], config, _TOTALS) for i in (0, 1)
    ]
    assert sum(float(part.total) for part in parts) == pytest.approx(float(whole.total), abs=1e-7)


def test_mindspeed_rl_definitions_give_its_loss_and_average_micro_batches() -> None:
    config = tiny("stack.definitions=mindspeed_rl", "actor_rollout_ref.actor.kl_loss_coef=0.1")
    batch = algorithms.advantages(_batch(), config)
    assert batch.advantages is not None
    parts = [
        algorithms.loss(batch.rows([i]), _NEW[[i]], _ENTROPY[[i]], config, _TOTALS) for i in (0, 1)
    ]
    direct = [
        grpo_loss(
            _NEW[[i]],
            _OLD[[i]],
            _REF[[i]],
            batch.advantages[[i]],
            _MASK[[i]],
            kl_coefficient=0.1,
        )
        for i in (0, 1)
    ]
    expected = sum(float(one.loss) for one in direct) / 2
    assert sum(float(part.total) for part in parts) == pytest.approx(expected, rel=1e-6)


def test_ppo_whitens_gae_and_keeps_its_returns() -> None:
    config = tiny("stack.algorithm=ppo", "algorithm.lam=0.9")
    raw = _batch()
    assert raw.values is not None
    batch = algorithms.advantages(raw, config)
    advantages, returns = gae(raw.token_level_rewards, raw.values, _MASK, gamma=1.0, lam=0.9)
    assert batch.advantages is not None and batch.returns is not None
    assert torch.equal(batch.advantages, whiten(advantages, _MASK))
    assert torch.equal(batch.returns, returns)
    # by hand, first row: last token 1 - 0.4; before it 0.1 + 0.9 × 0.6; then 0.1 + 0.9 × 0.64
    assert returns[0].tolist() == pytest.approx([0.2 + 0.676, 0.3 + 0.64, 1.0])
    result = algorithms.loss(batch, _NEW, _ENTROPY, config, _TOTALS)
    assert "actor/kl_loss" not in result.summed
    assert math.isfinite(float(result.total))


def test_dapo_clips_higher_and_penalises_long_responses() -> None:
    config = tiny(
        "stack.algorithm=dapo",
        "reward_model.reward_kwargs.overlong_buffer_cfg.len=2",
        "data.max_response_length=3",
    )
    penalised = penalise_overlong(_batch(), config)
    # buffer from 1 token on: three tokens lose 1, two lose 0.5, at the last token
    expected = [[0.0, 0.0, 0.0], [0.0, -0.5, 0.0]]
    assert penalised.token_level_rewards.tolist() == expected
    batch = algorithms.advantages(_batch(), config)
    result = algorithms.loss(batch, _NEW, _ENTROPY, config, _TOTALS)
    unit = 0.5 / (math.sqrt(0.5) + 1e-6)
    tokens = [-unit * 1.28, -unit * math.exp(-0.1), -unit, unit * 0.8, unit * math.exp(0.8)]
    assert float(result.total) == pytest.approx(sum(tokens) / 5, rel=1e-6)


def test_dpo_pairs_the_best_with_the_worst() -> None:
    config = tiny("stack.algorithm=dpo", "stack.dpo.beta=0.5")
    reversed_rows = _batch().rows([1, 0])
    batch = algorithms.advantages(reversed_rows, config)
    assert batch.token_level_rewards.sum(-1).tolist() == [1.0, 0.0]
    result = algorithms.loss(batch, _NEW, _ENTROPY, config, _TOTALS)
    # policy minus reference: -1.5 + 1.9 chosen, -2.1 + 1.9 rejected
    margin = 0.4 - (-0.2)
    assert float(result.total) == pytest.approx(math.log1p(math.exp(-0.5 * margin)), rel=1e-5)
    assert result.averaged["rewards/accuracies"] == 1.0
    alike = replace(_batch(), token_level_rewards=torch.zeros(2, 3))
    assert len(algorithms.advantages(alike, config)) == 0


def test_entropy_kl_sign_and_rollout_correction_enter_as_they_should() -> None:
    plain = tiny("actor_rollout_ref.actor.use_kl_loss=false")
    batch = algorithms.advantages(_batch(), plain)
    base = float(algorithms.loss(batch, _NEW, _ENTROPY, plain, _TOTALS).total)
    bonus = tiny(
        "actor_rollout_ref.actor.use_kl_loss=false", "actor_rollout_ref.actor.entropy_coeff=0.1"
    )
    with_bonus = float(algorithms.loss(batch, _NEW, _ENTROPY, bonus, _TOTALS).total)
    assert with_bonus == pytest.approx(base - 0.1)  # entropy 1 nat everywhere, subtracted
    with_kl = float(algorithms.loss(batch, _NEW, _ENTROPY, tiny(), _TOTALS).total)
    kl = kl_estimate(_NEW, _REF, "low_var_kl")[_MASK.bool()].mean()
    assert with_kl == pytest.approx(base + 0.001 * float(kl))
    corrected = tiny(
        "actor_rollout_ref.actor.use_kl_loss=false", "algorithm.rollout_correction.rollout_is=token"
    )
    apart = replace(batch, rollout_log_probs=_OLD + math.log(2.0))  # every weight is 1/2
    halved = float(algorithms.loss(apart, _NEW, _ENTROPY, corrected, _TOTALS).total)
    assert halved == pytest.approx(base / 2, rel=1e-5)
