"""Per-token estimates of KL(policy || reference), in nats, and the controllers of its coefficient.

For log ratio d = log_prob - ref_log_prob of a token drawn from the policy (J. Schulman,
"Approximating KL divergence", 2020): k1 = d, k2 = d²/2, k3 = exp(-d) - 1 + d.
"""

from __future__ import annotations

import torch
from torch import Tensor

from align.objective.errors import ObjectiveError

LOG_RATIO_LIMIT = 20.0  # clamp of ±d before exp
ESTIMATE_LIMIT = 10.0  # clamp of k3 itself: a token never counts more than 10 nats
_ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}


def kl_estimate(log_prob: Tensor, ref_log_prob: Tensor, estimator: str) -> Tensor:
    """Estimate the KL divergence of every token.

    Args:
        log_prob: float [...], of the policy.
        ref_log_prob: same shape.
        estimator: "kl" or "k1"; "abs"; "mse" or "k2"; "low_var_kl" or "k3". A trailing "+" (verl
            0.6 and later) keeps the value and takes the gradient of k2, whose expectation is the
            gradient of the KL divergence; those of k1 and k3 are not.

    Returns:
        Same shape and dtype.

    Raises:
        ObjectiveError: unknown estimator; "full", which needs logits, exists in neither framework.

    Source: verl 0.9.1 `kl_penalty`; MindSpeed-RL `compute_kl_penalty` has kl, abs, mse and
    low_var_kl with the same clamps and no "+".
    """
    base = estimator.removesuffix("+")
    value = _estimate(log_prob, ref_log_prob, _ALIASES.get(base, base))
    if estimator == base:
        return value
    k2 = 0.5 * (log_prob - ref_log_prob) ** 2
    return k2 - k2.detach() + value.detach()


def low_variance_kl(log_prob: Tensor, ref_log_prob: Tensor) -> Tensor:
    """Estimate with k3 unclamped: exp(-d) - 1 + d.

    Source: TRL 1.16 `GRPOTrainer._compute_loss`. Up to 10 nats it equals the clamped one.
    """
    negative = ref_log_prob - log_prob
    return torch.exp(negative) - negative - 1


def next_kl_coefficient(
    coefficient: float, current_kl: float, *, target: float, horizon: float, num_steps: int
) -> float:
    """Move the KL coefficient of a controller of type "adaptive" after one update.

    Args:
        current_kl: mean KL of the batch, in nats.
        target, horizon: `target_kl` in nats and `horizon` in the unit of num_steps.
        num_steps: sequences of the batch.

    Source: verl and MindSpeed-RL `AdaptiveKLController.update`. A NaN stays NaN.
    """
    error = current_kl / target - 1
    clipped = max(-0.2, min(0.2, error)) if error == error else error
    return coefficient * (1 + clipped * num_steps / horizon)


def _estimate(log_prob: Tensor, ref_log_prob: Tensor, base: str) -> Tensor:
    difference = log_prob - ref_log_prob
    if base == "k1":
        return difference
    if base == "abs":
        return difference.abs()
    if base == "k2":
        return 0.5 * difference**2
    if base == "k3":
        negative = (-difference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return (torch.exp(negative) - negative - 1).clamp(-ESTIMATE_LIMIT, ESTIMATE_LIMIT)
    raise ObjectiveError(
        where="kl_estimate",
        key="kl_penalty",
        problem=f"no estimator is called {base!r}",
        fix="use kl (k1), abs, mse (k2) or low_var_kl (k3), each also with a trailing +",
    )
