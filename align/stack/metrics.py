"""Metrics of one training step, named as verl names them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from align.objective.aggregate import LossAggregation, aggregate
from align.objective.masked import masked_mean
from align.stack.batch import TrainBatch, given

if TYPE_CHECKING:
    from align.stack.config import StackConfig
    from align.stack.dataset import Row
    from align.stack.rewards import Scores


def summarise_scores(scores: Sequence[Scores], rows: Sequence[Row]) -> dict[str, float]:
    """Average every rule's score over the responses it applies to.

    A rule that does not apply to a response (None) stays out of its mean; a rule that applies to
    none has no value this step.
    """
    by_rule: dict[str, list[float]] = {}
    for score in scores:
        for rule, value in score.by_rule.items():
            if value is not None:
                by_rule.setdefault(rule, []).append(value)
    return {f"rewards/{rule}/mean": sum(v) / len(v) for rule, v in sorted(by_rule.items())}


def data_metrics(
    batch: TrainBatch, scores: Sequence[float], config: StackConfig
) -> dict[str, float]:
    """Describe rewards and lengths of a batch, as verl's `compute_data_metrics` does.

    Args:
        batch: with its final rewards.
        scores: of the responses, before any penalty.
        config: of the run.
    """
    response_lengths = batch.response_mask.sum(-1).double()
    prompt_width = batch.input_ids.shape[1] - batch.responses.shape[1]
    prompt_lengths = batch.attention_mask[:, :prompt_width].sum(-1).double()
    return {
        **_spread("critic/score", torch.tensor(scores, dtype=torch.float64)),
        **_spread("critic/rewards", batch.token_level_rewards.sum(-1).double()),
        **_lengths("response_length", response_lengths, config.data.max_response_length),
        **_lengths("prompt_length", prompt_lengths, config.data.max_prompt_length),
        "response/aborted_ratio": float((response_lengths == 0).double().mean()),
        "perf/total_num_tokens": float(prompt_lengths.sum() + response_lengths.sum()),
    }


def advantage_metrics(batch: TrainBatch) -> dict[str, float]:
    """Describe advantages, returns and values over the tokens that count."""
    columns = {"advantages": batch.advantages, "returns": batch.returns, "values": batch.values}
    spreads: dict[str, float] = {}
    for name, column in columns.items():
        if column is not None:
            spreads |= _spread(f"critic/{name}", column[batch.response_mask.bool()])
    return spreads


def mismatch_metrics(batch: TrainBatch) -> dict[str, float]:
    """Compare the rollout engine's probabilities with the trainer's, before the update.

    Source: verl 0.9.1 `calculate_debug_metrics`, on probabilities; `rollout_corr/*` on nats.
    """
    if batch.rollout_log_probs is None:
        return {}
    mask = batch.response_mask.bool()
    rollout, trainer = (
        batch.rollout_log_probs[mask].double(),
        given(batch.old_log_probs)[mask].double(),
    )
    if not len(trainer):
        return {"training/rollout_probs_diff_valid": 0.0}
    difference = (rollout.exp() - trainer.exp()).abs()
    log_ratio = trainer - rollout
    return {
        "training/rollout_probs_diff_valid": 1.0,
        "training/rollout_probs_diff_max": float(difference.max()),
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_std": float(difference.std()) if len(difference) > 1 else 0.0,
        "training/rollout_actor_probs_pearson_corr": _correlation(rollout.exp(), trainer.exp()),
        "rollout_corr/kl": float(-log_ratio.mean()),
        "rollout_corr/k3_kl": float((log_ratio.exp() - log_ratio - 1).mean()),
        "rollout_corr/training_log_ppl": float(-trainer.mean()),
        "rollout_corr/rollout_log_ppl": float(-rollout.mean()),
    }


def entropy_metric(entropy: Tensor, batch: TrainBatch, config: StackConfig) -> dict[str, float]:
    """Aggregate the entropy of the policy before the update, as verl aggregates its loss."""
    mode = LossAggregation(config.actor.loss_agg_mode)
    return {"actor/entropy": float(aggregate(entropy, batch.response_mask, mode))}


def kl_metrics(kl: Tensor, batch: TrainBatch, coefficient: float) -> dict[str, float]:
    """Report the KL that the reward was penalised by, in nats a token."""
    per_response = masked_mean(kl, batch.response_mask, -1)
    return {
        "actor/reward_kl_penalty": float(per_response.mean()),
        "actor/reward_kl_penalty_coeff": coefficient,
    }


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if not values.numel():
        return {}
    return {
        f"{name}/mean": float(values.double().mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _lengths(name: str, lengths: Tensor, limit: int) -> dict[str, float]:
    return {
        **_spread(name, lengths),
        f"{name}/clip_ratio": float((lengths >= limit).double().mean()),
    }


def _correlation(a: Tensor, b: Tensor) -> float:
    if len(a) < 2:
        return math.nan
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])
