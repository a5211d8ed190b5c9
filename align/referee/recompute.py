"""Recompute the losses and fractions of one update in float64, with what rounding hides of each.

The bound on a value of n terms is unit roundoff · (8 + 4·√n) · the same aggregate of the terms'
sizes: eight elementary operations a term, and a sum in any order (Higham and Mary 2019, "A new
approach to probabilistic rounding error analysis", λ = 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from align.objective.accumulate import normalised_globally
from align.objective.aggregate import GlobalBatch, LossAggregation, aggregate
from align.objective.importance_sampling import rollout_weights
from align.objective.kl import kl_estimate
from align.objective.masked import masked_mean
from align.objective.policy_loss import Clip, TokenPolicyLoss, clipped_surrogate, gspo
from align.referee.objective import Normalisation, Objective
from align.referee.update import Update

POLICY, KL, TOTAL = "actor/pg_loss", "actor/kl_loss", "actor/loss"
CLIPPED, DUAL_CLIPPED, APPROX_KL = "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl"
NORM = "actor/grad_norm"
QUANTITIES = (POLICY, KL, TOTAL, CLIPPED, DUAL_CLIPPED, APPROX_KL)

_Reduce = Callable[[Tensor], float]  # of token values [m, r]


@dataclass(frozen=True, slots=True)
class Amount:
    """A recomputed value, and how far rounding can take a recorded one from it."""

    value: float
    rounding: float

    def is_met_by(self, reported: float, resolution: float = 0.0) -> bool:
        """Whether a reported value is this one to rounding; NaN is met by NaN.

        Args:
            resolution: the smallest difference the reported form can show.
        """
        if math.isnan(self.value) or math.isnan(reported):
            return math.isnan(self.value) and math.isnan(reported)
        return abs(reported - self.value) <= self.rounding + resolution


def recompute(update: Update, objective: Objective) -> Mapping[str, Amount]:
    """Compute what an objective gives for an update, by metric."""
    mask = _shifted(update.mask, objective.mask_shift)
    tokens = _token_losses(update, objective, mask)
    weights = _weights(update, objective)
    losses = tokens.losses if weights is None else tokens.losses * weights
    reduce = _reduction(update, objective, mask)
    bound = update.roundoff * (8 + 4 * math.sqrt(float(mask.sum())))
    size = 3 + tokens.negative_log_ratio.abs()
    policy = Amount(
        objective.policy_sign * reduce(losses), bound * reduce(losses.detach().abs() * size)
    )
    found = {POLICY: policy}
    total, rounding = policy.value, policy.rounding
    if update.ref_log_prob is not None and objective.kl_coef:
        kl = _kl(update, update.ref_log_prob, objective, reduce, bound)
        found[KL] = kl
        total += objective.kl_coef * kl.value
        rounding += abs(objective.kl_coef) * kl.rounding
    if update.entropys is not None and objective.entropy_coef:
        total -= objective.entropy_coef * reduce(update.entropys)
        rounding += abs(objective.entropy_coef) * bound * reduce(update.entropys.abs())
    if (update.ref_log_prob is not None or not objective.kl_coef) and (
        update.entropys is not None or not objective.entropy_coef
    ):
        found[TOTAL] = Amount(total, rounding)
    return found | _fractions(update, objective, tokens, mask, bound)


def _token_losses(update: Update, objective: Objective, mask: Tensor) -> TokenPolicyLoss:
    clip = Clip(objective.clip_low, objective.clip_high, objective.dual, objective.log_ratio_limit)
    advantages = update.advantages.roll(objective.advantage_shift, -1)
    given = update.log_probs, _old(update, objective), advantages
    return gspo(*given, mask, clip) if objective.gspo else clipped_surrogate(*given, clip)


def _weights(update: Update, objective: Objective) -> Tensor | None:
    if objective.correction is None or update.rollout_log_probs is None:
        return None
    level, upper = objective.correction
    return rollout_weights(
        update.old_log_probs, update.rollout_log_probs, update.mask, level, upper=upper
    )


def _kl(
    update: Update,
    reference: Tensor,
    objective: Objective,
    reduce: _Reduce,
    bound: float,
) -> Amount:
    """Estimate the KL; its terms cancel, so rounding counts by their size before."""
    pair = (update.log_probs, reference)
    policy, reference = pair[::-1] if objective.kl_reversed else pair
    weight = torch.ones_like(policy)
    if objective.kl_by_ratio:
        weight = _ratio(update, objective)
    estimate = kl_estimate(policy, reference, objective.kl_type)
    distance = (reference - policy).clamp(-20, 20)
    size = 1 + distance.exp() * (1 + distance.abs()) + distance.abs()
    value = objective.kl_sign * reduce(weight * estimate)
    return Amount(value, bound * reduce(weight * size) + _sum_rounding(update) * abs(value))


def _sum_rounding(update: Update) -> float:
    """Return what is rounded off a mean of bfloat16 numbers; 0 for others, bounded already.

    Four roundings of 2^-8: sum, division, coefficient, and the sum it is added to.
    """
    return 2.0**-6 if update.log_probs.dtype == torch.bfloat16 else 0.0


def _ratio(update: Update, objective: Objective) -> Tensor:
    """[m, r], the ratio that the policy loss of an objective takes for each token."""
    log_ratio = update.log_probs - _old(update, objective)
    if objective.gspo:
        lengths = update.mask.sum(-1).clamp(min=1)
        sequence = (log_ratio * update.mask).sum(-1) / lengths
        log_ratio = sequence[:, None].expand_as(log_ratio)
    return log_ratio.exp()


def _old(update: Update, objective: Objective) -> Tensor:
    return update.log_probs if objective.own_ratio else update.old_log_probs


def _fractions(
    update: Update, objective: Objective, tokens: TokenPolicyLoss, mask: Tensor, bound: float
) -> dict[str, Amount]:
    """Count clipped tokens; one whose ratio lies on a bound to rounding may count or not."""
    ratio = (-tokens.negative_log_ratio).exp()
    edges = [1 - objective.clip_low, 1 + objective.clip_high]
    edges += [] if objective.dual is None else [objective.dual]
    near = torch.stack([(ratio - e).abs() <= 32 * update.roundoff * e for e in edges]).any(0)
    unsure = float(masked_mean(near.double(), mask)) + bound
    approx_kl = tokens.negative_log_ratio.double()
    bound = bound + _sum_rounding(update)
    return {
        CLIPPED: Amount(float(masked_mean(tokens.clipped.double(), mask)), unsure),
        DUAL_CLIPPED: Amount(float(masked_mean(tokens.dual_clipped.double(), mask)), unsure),
        APPROX_KL: Amount(
            float(masked_mean(approx_kl, mask)), bound * float(masked_mean(approx_kl.abs(), mask))
        ),
    }


def _reduction(update: Update, objective: Objective, mask: Tensor) -> _Reduce:
    """Return how token values become one number."""
    mode, factor = objective.aggregation, objective.scale_factor
    if objective.normalisation is Normalisation.MINI_BATCH:
        sizes, share = [len(mask)], 1.0
        if not objective.counts_shifted and mode is LossAggregation.TOKEN_MEAN:
            share = float(mask.sum() / update.mask.sum())
        return lambda values: share * float(normalised_globally(values, mask, mode, sizes, factor))
    micros = [update.micro_batches == each for each in set(update.micro_batches.tolist())]

    def of_micro_batches(values: Tensor) -> float:
        whole = 0.0
        for own in micros:
            part = _part(values[own], mask[own], mode, factor)
            share = float(own.sum()) / len(own)
            whole += part if objective.normalisation is Normalisation.SUMMED else share * part
        return whole

    return of_micro_batches


def _part(values: Tensor, mask: Tensor, mode: LossAggregation, factor: float | None) -> float:
    return float(aggregate(values, mask, mode, GlobalBatch(loss_scale_factor=factor)))


def _shifted(mask: Tensor, columns: int) -> Tensor:
    if not columns:
        return mask
    moved = torch.roll(mask, columns, dims=1)
    edge = slice(0, columns) if columns > 0 else slice(columns, None)
    moved[:, edge] = 0
    return moved
