"""Direct preference optimisation on summed log-probabilities of chosen and rejected responses."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from align.objective.errors import ObjectiveError


def sequence_log_probs(log_probs: Tensor, response_mask: Tensor) -> Tensor:
    """Sum a response's log-probabilities: [batch, response_len] to [batch], in nats.

    A NaN outside the mask poisons its row (it is multiplied by 0).
    """
    return (log_probs * response_mask.to(log_probs.dtype)).sum(-1)


def preference_margin(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor | None = None,
    ref_rejected: Tensor | None = None,
) -> Tensor:
    """Compute by how much the policy prefers the chosen response more than the reference does.

    Args:
        chosen, rejected: float [pairs], nats, with gradient.
        ref_chosen, ref_rejected: float [pairs] of the reference model; both None is the
            reference-free variant, whose reference finds every response equally likely.

    Returns:
        [pairs], (chosen - ref_chosen) - (rejected - ref_rejected); β times it is the reward margin.

    Raises:
        ObjectiveError: one of the two reference values is given alone.
    """
    if (ref_chosen is None) != (ref_rejected is None):
        raise ObjectiveError(
            where="preference_margin",
            key="ref_log_prob",
            problem="is given for one response of the pair alone",
            fix="give both, or neither for reference-free DPO",
        )
    if ref_chosen is None or ref_rejected is None:
        return chosen - rejected
    return (chosen - ref_chosen) - (rejected - ref_rejected)


def sigmoid_loss(margin: Tensor, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """Compute -log σ(β margin) per pair, mixed with the flipped label when smoothed.

    Args:
        margin: float [pairs], from `preference_margin`.
        beta: strength of the reference.
        label_smoothing: assumed probability that a label is wrong, in [0, 0.5) (cDPO).

    Returns:
        [pairs]; the loss is its mean.

    Source: Rafailov et al. 2023, arXiv 2305.18290; MindSpeed-RL `dpo_loss_type: sigmoid`; TRL
    "sigmoid", which since 1.0 ignores label_smoothing.
    """
    agreeing, flipped = -logsigmoid(beta * margin), -logsigmoid(-beta * margin)
    return agreeing * (1 - label_smoothing) + flipped * label_smoothing


def robust_loss(margin: Tensor, *, beta: float, label_smoothing: float) -> Tensor:
    """Compute the loss that is unbiased under labels flipped with a known probability.

    Raises:
        ObjectiveError: label_smoothing of 0.5, where labels say nothing.

    Source: Chowdhury et al. 2024, arXiv 2403.00409; TRL "robust".
    """
    if label_smoothing == 0.5:
        raise ObjectiveError(
            where="robust_loss",
            key="label_smoothing",
            problem="is 0.5, so that labels carry no information",
            fix="use a value below 0.5",
        )
    agreeing, flipped = -logsigmoid(beta * margin), -logsigmoid(-beta * margin)
    mixed = agreeing * (1 - label_smoothing) - flipped * label_smoothing
    return mixed / (1 - 2 * label_smoothing)
