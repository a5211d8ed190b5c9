"""Our objective against the installed verl, value by value and gradient by gradient."""

from __future__ import annotations

import itertools
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
from verl.workers.config import ActorConfig
from verl.workers.reward_manager.dapo import DAPORewardManager

from align.objective import accumulate, advantages, dapo, gae, kl, masked, policy_loss, schedules
from align.objective.aggregate import GlobalBatch, LossAggregation, aggregate
from align.objective.entropy import entropy_from_logits
from align.objective.errors import ObjectiveError
from align.objective.importance_sampling import (
    RatioLevel,
    effective_sample_fraction,
    rollout_weights,
)
from align.objective.log_probs import log_probs_from_logits
from align.objective.value_loss import clipped_value_loss
from tests.frameworks.parity import BATCHES, EVERY_BATCH, EVERY_SCORING, Batch, gradient
from tests.frameworks.parity import agree as _agree

EVERY_MODE = pytest.mark.parametrize("mode", LossAggregation)
GLOBALS = (GlobalBatch(), GlobalBatch(dp_size=2, num_tokens=57, num_sequences=9))
SCALED = GlobalBatch(num_tokens=57, num_sequences=9, loss_scale_factor=100)


def agree(function: str, ours, theirs, tolerance: float = 1e-6) -> None:
    _agree("verl 0.9.1", function, ours, theirs, tolerance)


def info(batch: GlobalBatch) -> dict[str, float | None]:
    return {
        "dp_size": batch.dp_size,
        "batch_num_tokens": batch.num_tokens,
        "global_batch_size": batch.num_sequences,
        "loss_scale_factor": batch.loss_scale_factor,
    }


def config(clip: policy_loss.Clip, batch: GlobalBatch) -> ActorConfig:
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=clip.low,
        clip_ratio_high=clip.high,
        clip_ratio_c=clip.dual or 3.0,
        global_batch_info=info(batch),
    )


def test_the_installed_verl_has_exactly_our_aggregation_modes() -> None:
    for mode in LossAggregation:
        ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            loss_agg_mode=mode.value,
        )
    with pytest.raises(ValueError, match="Invalid loss_agg_mode"):
        ActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode="mean"
        )


@EVERY_BATCH
@EVERY_MODE
@pytest.mark.parametrize("whole", [*GLOBALS, SCALED], ids=["local", "global", "scaled"])
def test_aggregation_agrees(batch: Batch, mode: LossAggregation, whole: GlobalBatch) -> None:
    for mask in (batch.mask, batch.mask.bool(), batch.mask.float()):
        ours, theirs = batch.leaf("advantages"), batch.leaf("advantages")
        loss = aggregate(ours, mask, mode, whole)
        reference = core_algos.agg_loss(theirs, mask, mode.value, **info(whole))
        agree(f"agg_loss {mode.value}", loss, reference)
        agree(
            f"agg_loss {mode.value} gradient",
            *gradient(loss, ours),
            *gradient(reference, theirs),
        )


@EVERY_MODE
def test_aggregation_treats_nan_as_verl_does(mode: LossAggregation) -> None:
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    for row, column in itertools.product(range(2), range(3)):
        losses = torch.ones(2, 3)
        losses[row, column] = float("nan")
        agree(
            "agg_loss of a NaN",
            aggregate(losses, mask, mode),
            core_algos.agg_loss(losses, mask, mode.value),
        )


@EVERY_MODE
def test_both_refuse_ranks_without_global_counts(mode: LossAggregation) -> None:
    matrix, mask = torch.ones(2, 3), torch.ones(2, 3)
    if mode is LossAggregation.TOKEN_SUM:
        return
    if mode is not LossAggregation.SEQ_MEAN_TOKEN_MEAN:
        with pytest.raises(ValueError, match="required"):
            core_algos.agg_loss(matrix, mask, mode.value, dp_size=2)
    with pytest.raises(ObjectiveError, match="2 data-parallel ranks"):
        aggregate(matrix, mask, mode, GlobalBatch(dp_size=2))


@EVERY_BATCH
@EVERY_MODE
def test_a_split_mini_batch_agrees(batch: Batch, mode: LossAggregation) -> None:
    rows = batch.mask.shape[0]
    sizes = [1, rows - 1] if rows > 1 else [1]
    if not int(batch.mask.sum()):
        return
    whole = GlobalBatch(num_tokens=int(batch.mask.sum()), num_sequences=rows)
    parts = zip(batch.advantages.split(sizes), batch.mask.split(sizes), strict=True)
    theirs = sum(core_algos.agg_loss(m, k, mode.value, **info(whole)) for m, k in parts)
    ours = accumulate.normalised_globally(batch.advantages, batch.mask, mode, sizes)
    agree("agg_loss over micro-batches", ours, theirs)


@EVERY_BATCH
@pytest.mark.parametrize("plus", ["", "+"])
@pytest.mark.parametrize("name", ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"])
def test_kl_estimators_agree(batch: Batch, name: str, plus: str) -> None:
    ours, theirs = batch.leaf(), batch.leaf()
    estimate = kl.kl_estimate(ours, batch.ref_log_prob, name + plus)
    reference = core_algos.kl_penalty(theirs, batch.ref_log_prob, name + plus)
    agree(f"kl_penalty {name}{plus}", estimate, reference)
    agree(
        f"kl_penalty {name}{plus} gradient",
        *gradient(estimate, ours),
        *gradient(reference, theirs),
    )


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3", "k3+"])
def test_kl_of_infinite_log_probs_agrees(name: str) -> None:
    values = torch.tensor([0.0, -1.0, -200.0, float("-inf"), float("nan")])
    ours, theirs = values[:, None].expand(5, 5), values[None, :].expand(5, 5)
    agree(
        f"kl_penalty {name} of inf and NaN",
        kl.kl_estimate(ours, theirs, name),
        core_algos.kl_penalty(ours, theirs, name),
    )


@pytest.mark.parametrize("name", ["full", "k4", ""])
def test_both_refuse_an_unknown_kl_estimator(name: str) -> None:
    with pytest.raises(NotImplementedError):
        core_algos.kl_penalty(torch.zeros(1), torch.zeros(1), name)
    with pytest.raises(ObjectiveError, match="no estimator"):
        kl.kl_estimate(torch.zeros(1), torch.zeros(1), name)


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


CLIPS = {
    "default": policy_loss.Clip(),
    "clip-higher": policy_loss.Clip(low=0.2, high=0.28, dual=10.0),
    "tight": policy_loss.Clip(low=0.01, high=0.01, dual=1.1),
    "no room": policy_loss.Clip(low=0.0, high=0.0),
}
EVERY_CLIP = pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS.keys())


@EVERY_BATCH
@EVERY_CLIP
@EVERY_MODE
@pytest.mark.parametrize("whole", GLOBALS, ids=["local", "global"])
@pytest.mark.parametrize("kind", ["vanilla", "gspo"])
def test_policy_losses_agree(
    batch: Batch, clip: policy_loss.Clip, mode: LossAggregation, whole: GlobalBatch, kind: str
) -> None:
    ours, theirs = batch.leaf(), batch.leaf()
    weights = batch.values.abs() if clip is CLIPS["clip-higher"] else None
    reference, metrics = core_algos.get_policy_loss_fn(kind)(
        batch.old_log_prob,
        theirs,
        batch.advantages,
        batch.mask,
        mode.value,
        config(clip, whole),
        weights,
    )
    if kind == "gspo":
        tokens = policy_loss.gspo(ours, batch.old_log_prob, batch.advantages, batch.mask, clip)
    else:
        tokens = policy_loss.clipped_surrogate(ours, batch.old_log_prob, batch.advantages, clip)
    result = policy_loss.reduce_policy_loss(tokens, batch.mask, mode, whole, weights)
    name = f"compute_policy_loss_{kind}"
    agree(name, result.loss, reference)
    agree(f"{name} gradient", *gradient(result.loss, ours), *gradient(reference, theirs))
    agree(f"{name} pg_clipfrac", result.clip_fraction, metrics["actor/pg_clipfrac"])
    lower = metrics["actor/pg_clipfrac_lower"]
    agree(f"{name} pg_clipfrac_lower", result.dual_clip_fraction, lower)
    agree(f"{name} ppo_kl", result.approx_kl, metrics["actor/ppo_kl"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_policy_loss_of_a_bad_token_agrees(bad: float) -> None:
    for name, inside in itertools.product(["log_prob", "advantages"], [True, False]):
        batch = BATCHES["random0"]
        values = {key: getattr(batch, key).clone() for key in ("log_prob", "advantages")}
        values[name][0, 0 if inside else -1] = bad
        reference, _ = core_algos.compute_policy_loss_vanilla(
            batch.old_log_prob,
            values["log_prob"],
            values["advantages"],
            batch.mask,
            "token-mean",
            config(policy_loss.Clip(), GlobalBatch()),
        )
        tokens = policy_loss.clipped_surrogate(
            values["log_prob"], batch.old_log_prob, values["advantages"], policy_loss.Clip()
        )
        ours = policy_loss.reduce_policy_loss(tokens, batch.mask, LossAggregation.TOKEN_MEAN)
        agree("compute_policy_loss_vanilla of inf and NaN", ours.loss, reference)


def test_both_refuse_a_dual_clip_of_one() -> None:
    with pytest.raises(ObjectiveError, match="not above 1"):
        policy_loss.Clip(dual=1.0)


@EVERY_BATCH
@EVERY_MODE
@pytest.mark.parametrize("cliprange", [0.5, 0.0, 1e9])
def test_value_loss_agrees(batch: Batch, mode: LossAggregation, cliprange: float) -> None:
    ours, theirs = batch.leaf("rewards"), batch.leaf("rewards")
    for whole in GLOBALS:
        result = clipped_value_loss(
            ours,
            batch.values,
            batch.advantages,
            batch.mask,
            cliprange_value=cliprange,
            mode=mode,
            batch=whole,
        )
        reference, fraction = core_algos.compute_value_loss(
            theirs,
            batch.advantages,
            batch.values,
            batch.mask,
            cliprange,
            mode.value,
            **info(whole),
        )
        agree("compute_value_loss", result.loss, reference)
        agree(
            "compute_value_loss gradient",
            gradient(result.loss, ours)[0],
            *gradient(reference, theirs),
        )
        agree("compute_value_loss vf_clipfrac", result.clip_fraction, fraction)


def _logits(scale: float):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 7, 50, generator=generator) * scale
    return logits, torch.randint(0, 50, (3, 7), generator=generator)


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_log_probs_agree(scale: float, temperature: float) -> None:
    logits, labels = _logits(scale)
    ours, theirs = logits.clone().requires_grad_(True), logits.clone().requires_grad_(True)
    result = log_probs_from_logits(ours, labels, temperature=temperature)
    reference = torch_functional.logprobs_from_logits(theirs / temperature, labels)
    agree("logprobs_from_logits", result, reference)
    agree("logprobs_from_logits gradient", *gradient(result, ours), *gradient(reference, theirs))
    half = logits.bfloat16()
    agree(
        "logprobs_from_logits bfloat16",
        log_probs_from_logits(half, labels),
        torch_functional.logprobs_from_logits(half, labels),
    )


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
@EVERY_MODE
def test_entropy_agrees(scale: float, mode: LossAggregation) -> None:
    logits, _ = _logits(scale)
    ours, theirs = logits.clone().requires_grad_(True), logits.clone().requires_grad_(True)
    mask = BATCHES["random0"].mask[:3, :7]
    result = aggregate(entropy_from_logits(ours), mask, mode)
    reference = core_algos.compute_entropy_loss(theirs, mask, mode.value)
    agree("compute_entropy_loss", result, reference)
    agree("compute_entropy_loss gradient", *gradient(result, ours), *gradient(reference, theirs))


def test_entropy_of_a_forbidden_token_is_nan_in_both() -> None:
    logits = torch.tensor([[0.0, float("-inf")]])
    agree(
        "entropy_from_logits of -inf",
        entropy_from_logits(logits),
        torch_functional.entropy_from_logits(logits),
    )


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
