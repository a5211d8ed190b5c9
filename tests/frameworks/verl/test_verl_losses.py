"""Our losses against the installed verl, value by value and gradient by gradient."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

pytest.importorskip("torch", reason="parity with verl needs torch")
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")

import torch
from verl.trainer.ppo import core_algos
from verl.utils import torch_functional
from verl.workers.config import ActorConfig

from align.objective import accumulate, kl, policy_loss
from align.objective.aggregate import GlobalBatch, LossAggregation, aggregate
from align.objective.entropy import entropy_from_logits
from align.objective.errors import ObjectiveError
from align.objective.log_probs import log_probs_from_logits
from align.objective.value_loss import clipped_value_loss
from tests.frameworks.parity import BATCHES, EVERY_BATCH, Batch, gradient
from tests.frameworks.verl.real import EVERY_MODE, GLOBALS, SCALED, agree, config, info


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
    one, settings = torch.ones(1, 1), config(policy_loss.Clip(), GlobalBatch())
    with pytest.raises(AssertionError, match="greater than 1"):
        core_algos.compute_policy_loss_vanilla(
            one, one, one, one, config=dataclasses.replace(settings, clip_ratio_c=1.0)
        )
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
