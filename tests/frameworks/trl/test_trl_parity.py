"""Our objective against the installed TRL, value by value and gradient by gradient."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="parity with TRL needs torch")
pytest.importorskip("trl", reason="TRL is not installed")

import torch
from trl.trainer import utils

from align.objective import advantages, dpo, kl, policy_loss
from align.objective.aggregate import GlobalBatch, LossAggregation, aggregate
from align.objective.entropy import entropy_from_logits
from align.objective.log_probs import log_probs_from_logits
from align.objective.policy_loss import Clip
from tests.frameworks.parity import EVERY_BATCH, EVERY_SCORING, SCORED, Batch, gradient
from tests.frameworks.parity import agree as _agree
from tests.frameworks.trl import trainers

NUM_ITEMS = 57
LONGEST = 100
# TRL's name of a loss, and what it is in verl's words; empty rows are counted as rows
LOSS_TYPES = {
    "grpo": (LossAggregation.SEQ_MEAN_TOKEN_MEAN, GlobalBatch()),
    "bnpo": (LossAggregation.TOKEN_MEAN, GlobalBatch()),
    "dr_grpo": (LossAggregation.SEQ_MEAN_TOKEN_SUM_NORM, GlobalBatch(loss_scale_factor=LONGEST)),
    "dapo": (LossAggregation.TOKEN_MEAN, GlobalBatch(num_tokens=NUM_ITEMS)),
}
CLIPS = {
    "two-sided": Clip(dual=None, log_ratio_limit=None),
    "clip-higher": Clip(low=0.2, high=0.28, dual=None, log_ratio_limit=None),
    "delta": Clip(low=0.2, high=0.2, dual=1.5, log_ratio_limit=None),
}


def agree(function: str, ours, theirs, tolerance: float = 1e-6) -> None:
    _agree(trainers.PACKAGE, function, ours, theirs, tolerance)


def _whole(loss_type: str, batch: Batch) -> GlobalBatch:
    mode, whole = LOSS_TYPES[loss_type]
    if loss_type == "bnpo":  # an all-masked batch is 0/1 in TRL, 0/0 in verl
        return GlobalBatch(num_tokens=max(int(batch.mask.sum()), 1))
    rows = None if mode is LossAggregation.TOKEN_MEAN else batch.mask.shape[0]
    return GlobalBatch(1, whole.num_tokens, rows, whole.loss_scale_factor)


@EVERY_BATCH
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS.keys())
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_grpo_losses_agree(batch: Batch, loss_type: str, clip: Clip, beta: float) -> None:
    ours, theirs = batch.leaf(), batch.leaf()
    reference, metrics = trainers.grpo_loss(
        theirs,
        batch.old_log_prob,
        batch.advantages,
        batch.mask,
        loss_type=loss_type,
        ref_log_prob=batch.ref_log_prob,
        beta=beta,
        low=clip.low,
        high=clip.high,
        delta=clip.dual,
        num_items=NUM_ITEMS,
        max_completion_length=LONGEST,
    )
    mode, whole = LOSS_TYPES[loss_type][0], _whole(loss_type, batch)
    tokens = policy_loss.clipped_surrogate(ours, batch.old_log_prob, batch.advantages, clip)
    estimate = kl.low_variance_kl(ours, batch.ref_log_prob)
    losses = tokens.losses + beta * estimate if beta else tokens.losses
    loss = aggregate(losses, batch.mask, mode, whole)
    agree(f"GRPOTrainer loss {loss_type}", loss, reference)
    agree(
        f"GRPOTrainer loss {loss_type} gradient",
        *gradient(loss, ours),
        *gradient(reference, theirs),
    )
    if beta:
        (theirs_kl,) = metrics["kl"]
        mean_kl = aggregate(estimate, batch.mask, LossAggregation.TOKEN_MEAN, _whole("bnpo", batch))
        agree("GRPOTrainer kl", mean_kl, theirs_kl)
    if clip.dual is None:
        reduced = policy_loss.reduce_policy_loss(tokens, batch.mask, mode, whole)
        (region,) = metrics["clip_ratio/region_mean"]
        agree("GRPOTrainer clip_ratio/region_mean", reduced.clip_fraction, region)


@EVERY_BATCH
def test_gspo_agrees(batch: Batch) -> None:
    if batch.name.startswith("log ratios"):  # verl, and so we, clamp the ratio at exp(10)
        batch = Batch(**{**vars(batch), "log_prob": batch.old_log_prob + 0.1})
    clip = Clip(low=0.2, high=0.28, dual=None)
    ours, theirs = batch.leaf(), batch.leaf()
    scalar = batch.advantages[:, 0]
    reference, _ = trainers.grpo_loss(
        theirs,
        batch.old_log_prob,
        scalar,
        batch.mask,
        loss_type="grpo",
        level="sequence",
        low=clip.low,
        high=clip.high,
    )
    matrix = scalar[:, None].expand_as(batch.mask)
    tokens = policy_loss.gspo(ours, batch.old_log_prob, matrix, batch.mask, clip)
    loss = aggregate(tokens.losses, batch.mask, LOSS_TYPES["grpo"][0], _whole("grpo", batch))
    name = "GRPOTrainer loss sequence level"
    agree(name, loss, reference)
    agree(f"{name} gradient", *gradient(loss, ours), *gradient(reference, theirs))


PAIRS = {
    "random": (3, 7, 1.0),
    "one pair": (1, 5, 1.0),
    "far apart": (4, 6, 30.0),
    "identical": (2, 6, 0.0),
}


def _pairs(pairs: int, width: int, spread: float):
    generator = torch.Generator().manual_seed(5)
    policy = -torch.rand(2 * pairs, width, generator=generator)
    reference = policy + spread * torch.randn(policy.shape, generator=generator)
    lengths = torch.randint(0, width + 1, (2 * pairs, 1), generator=generator)
    return policy, reference, (torch.arange(width) < lengths).long()


def _margin(log_probs, reference, mask, *, reference_free: bool):
    chosen, rejected = dpo.sequence_log_probs(log_probs, mask).chunk(2)
    if reference_free:
        return dpo.preference_margin(chosen, rejected)
    return dpo.preference_margin(
        chosen, rejected, *dpo.sequence_log_probs(reference, mask).chunk(2)
    )


@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("reference_free", [False, True])
def test_dpo_agrees(pairs, beta: float, reference_free: bool) -> None:
    values, reference, mask = _pairs(*pairs)
    if reference_free:  # TRL 1.x has no such setting; a reference of equal log_probs is the same
        reference = torch.zeros_like(reference)
    for smoothing in (0.0, 0.1):
        ours, theirs = values.clone().requires_grad_(True), values.clone().requires_grad_(True)
        margin = _margin(ours, reference, mask, reference_free=reference_free)
        kinds = {
            "sigmoid": dpo.sigmoid_loss(margin, beta=beta),
            "robust": dpo.robust_loss(margin, beta=beta, label_smoothing=smoothing),
        }
        if len(margin) == 1:  # sorting one pair does nothing, so this is smoothed sigmoid
            kinds["aot_unpaired"] = dpo.sigmoid_loss(margin, beta=beta, label_smoothing=smoothing)
        for kind, losses in kinds.items():
            loss = losses.mean()
            theirs_loss, metrics = trainers.dpo_loss(
                theirs, reference, mask, loss_type=kind, beta=beta, smoothing=smoothing
            )
            agree(f"DPOTrainer {kind}", loss, theirs_loss)
            ours_grad = torch.autograd.grad(loss, ours, retain_graph=True)
            agree(f"DPOTrainer {kind} gradient", *ours_grad, *gradient(theirs_loss, theirs))
            agree("DPOTrainer rewards/margins", (beta * margin).mean(), *metrics["rewards/margins"])


@EVERY_SCORING
@pytest.mark.parametrize("scale", ["group", "none"])
def test_group_relative_advantages_agree(scored, scale: str) -> None:
    scores, groups = torch.tensor(scored[0]), torch.tensor(scored[1])
    size = _adjacent_group_size(scored[1])
    if size is None or not bool(scores.isfinite().all()):
        return  # TRL has adjacent groups of one size and sets what is not finite to 0
    mask = torch.ones(len(scores), 1)
    ours = advantages.grpo(
        scores, mask, groups, normalise_by_std=scale == "group", epsilon=1e-4
    ).squeeze(1)
    theirs = trainers.advantages(scores, size, scale=scale)
    if size == 1:
        assert not bool(theirs.any())  # TRL: 0, verl and we: the raw score
        return
    agree(f"GRPOTrainer advantages {scale}", ours, theirs)


@EVERY_SCORING
def test_leave_one_out_advantages_agree(scored) -> None:
    scores, groups = torch.tensor(scored[0]), torch.tensor(scored[1])
    size = _adjacent_group_size(scored[1])
    if size in (None, 1) or not bool(scores.isfinite().all()):
        return
    ours = advantages.rloo(scores, torch.ones(len(scores), 1), groups).squeeze(1)
    agree("RLOOTrainer advantages", ours, trainers.advantages(scores, size, rloo=True))


def _adjacent_group_size(groups: list[int]) -> int | None:
    size = groups.count(groups[0])
    return size if groups == [i // size for i in range(len(groups))] else None


def test_enough_of_the_scorings_have_groups_as_trl_wants_them() -> None:
    sizes = [_adjacent_group_size(groups) for _, groups in SCORED.values()]
    assert sum(size is not None and size > 1 for size in sizes) >= 4


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropy_agree(scale: float, temperature: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 7, 50, generator=generator) * scale
    labels = torch.randint(0, 50, (3, 7), generator=generator)
    ours, theirs = logits.clone().requires_grad_(True), logits.clone().requires_grad_(True)
    result = log_probs_from_logits(ours, labels, temperature=temperature)
    reference = utils.selective_log_softmax(theirs, labels, temperature)
    agree("selective_log_softmax", result, reference)
    agree("selective_log_softmax gradient", *gradient(result, ours), *gradient(reference, theirs))
    wide = logits.double()  # float32 loses the digits of large logits: see entropy.py
    ours_entropy, theirs_entropy = entropy_from_logits(wide), utils.entropy_from_logits(wide)
    agree("entropy_from_logits float64", ours_entropy, theirs_entropy)
    if scale <= 1.0:
        theirs_entropy = utils.entropy_from_logits(logits)
        agree("entropy_from_logits", entropy_from_logits(logits), theirs_entropy)
