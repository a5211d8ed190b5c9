"""The loss of pairs that a configuration declares, and what it gives for a recorded micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from align.core.config_value import EffectiveConfig
from align.core.text import Text
from align.objective.dpo import preference_margin, robust_loss, sigmoid_loss
from align.referee.preference_passes import PreferencePass
from align.referee.recompute import Amount

SMOOTHED_SIGMOID = "sigmoid, smoothed"  # TRL before 1.0; since then its sigmoid ignores smoothing
_OPTIONS = "loss.options.dpo."


@dataclass(frozen=True, slots=True)
class PreferenceObjective:
    """A loss of pairs.

    Args:
        types: names of TRL's loss types with their weights, summed.
        scale: what the sum is multiplied with; -1 has the sign wrong.
        exchanged: chosen and rejected responses are taken for each other.
        reference_free: the reference's log_probs are left out.
    """

    types: tuple[tuple[str, float], ...]
    beta: float
    label_smoothing: float = 0.0
    scale: float = 1.0
    exchanged: bool = False
    reference_free: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """What a loss is of: log ratios and lengths, [pairs] each."""

    chosen: Tensor
    rejected: Tensor
    chosen_length: Tensor
    rejected_length: Tensor

    @property
    def margin(self) -> Tensor:
        """By how much more the policy prefers the chosen response than the reference does."""
        return preference_margin(self.chosen, self.rejected)

    @property
    def margin_by_token(self) -> Tensor:
        """The same of averages over each response's tokens."""
        return preference_margin(
            self.chosen / self.chosen_length.clamp(min=1),
            self.rejected / self.rejected_length.clamp(min=1),
        )


def declared_preference(config: EffectiveConfig) -> PreferenceObjective | Text:
    """Return the loss a configuration of DPO declares, or say what of it is not judged."""
    values = {name: value.value for name, value in config.values.items()}
    beta, types = values.get("loss.options.dpo_beta"), values.get("loss.options.dpo_loss_type")
    names = (types,) if isinstance(types, str) else types
    if not isinstance(beta, int | float) or not isinstance(names, tuple | list):
        return Text("beta and loss_type of DPO are not known", "未知 DPO 的 beta 与 loss_type")
    refused = [str(name) for name in names if name not in LOSSES] or [
        f"{name}={values[key]}"
        for name, key, plain in _NOT_JUDGED
        if values.get(key, plain) not in (plain, None)
    ]
    smoothing = values.get(f"{_OPTIONS}label_smoothing")
    if "robust" in names and smoothing == 0.5:
        refused.append("label_smoothing=0.5")
    if refused:
        what = ", ".join(refused)
        return Text(f"the loss of DPO with {what} is not judged", f"不检查 {what} 的 DPO 损失")
    given = values.get(f"{_OPTIONS}loss_weights")
    weights = given if isinstance(given, tuple | list) else (1.0,) * len(names)
    return PreferenceObjective(
        tuple((str(name), float(str(w))) for name, w in zip(names, weights, strict=False)),
        float(beta),
        float(smoothing) if isinstance(smoothing, int | float) else 0.0,
        reference_free=values.get(f"{_OPTIONS}reference_free") is True,
    )


_NOT_JUDGED = (
    ("f_divergence_type", f"{_OPTIONS}f_divergence_type", "reverse_kl"),
    ("ld_alpha", f"{_OPTIONS}ld_alpha", None),
    ("rpo_alpha", f"{_OPTIONS}rpo_alpha", None),
    ("use_weighting", f"{_OPTIONS}use_weighting", False),
    ("router_aux_loss_coef", "model.moe_aux_loss_coef", 0.0),
)


def recompute_preference(given: PreferencePass, objective: PreferenceObjective) -> Amount | None:
    """Compute a micro-batch's loss; None where it needs a reference that is not recorded.

    Rounding of each summed log_prob counts by the loss's slope in it, that of the mean as in
    `align.referee.recompute`.
    """
    reference = None if objective.reference_free else given.reference
    if reference is None and not objective.reference_free:
        return None
    policy = given.policy.values.clone().requires_grad_()
    ratios = policy if reference is None else policy - reference.values
    hidden = given.policy.rounding + (0.0 if reference is None else reference.rounding)
    terms = _pair_losses(_ratios(ratios, given.lengths, exchanged=objective.exchanged), objective)
    loss = terms.mean()
    (slope,) = torch.autograd.grad(loss, policy)
    size = (1 + terms.detach().abs()).mean() * abs(objective.scale)
    bound = given.roundoff * (8 + 4 * math.sqrt(len(terms)))
    return Amount(float(loss.detach()), float((slope.abs() * hidden).sum() + bound * size))


def _ratios(both: Tensor, lengths: Tensor, *, exchanged: bool) -> Ratios:
    chosen, rejected = both.chunk(2)
    sizes = lengths.chunk(2)
    if exchanged:
        return Ratios(rejected, chosen, sizes[1], sizes[0])
    return Ratios(chosen, rejected, sizes[0], sizes[1])


def _pair_losses(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    """Return the loss of each pair, [pairs]."""
    parts = [weight * LOSSES[name](ratios, objective) for name, weight in objective.types]
    return objective.scale * torch.stack(parts).sum(0)


def _sigmoid(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    return sigmoid_loss(ratios.margin, beta=objective.beta)


def _smoothed_sigmoid(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    smoothing = objective.label_smoothing
    return sigmoid_loss(ratios.margin, beta=objective.beta, label_smoothing=smoothing)


def _sigmoid_norm(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    return sigmoid_loss(ratios.margin_by_token, beta=objective.beta)


def _robust(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    smoothing = objective.label_smoothing
    return robust_loss(ratios.margin, beta=objective.beta, label_smoothing=smoothing)


def _hinge(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    """Zhao et al. 2023, arXiv 2305.10425 (SLiC)."""
    return torch.relu(1 - objective.beta * ratios.margin)


def _ipo(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    """Azar et al. 2023, arXiv 2310.12036, eq. 17, of averages over tokens as TRL has it."""
    return (ratios.margin_by_token - 1 / (2 * objective.beta)) ** 2


def _exo_pair(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    """Ji et al. 2024, arXiv 2402.00856, eq. 16; without smoothing it is infinite."""
    strength, smoothing = objective.beta * ratios.margin, torch.tensor(objective.label_smoothing)
    wins = strength.sigmoid() * (logsigmoid(strength) - torch.log1p(-smoothing))
    return wins + (-strength).sigmoid() * (logsigmoid(-strength) - torch.log(smoothing))


def _nca_pair(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    """Chen et al. 2024, arXiv 2402.05369."""
    chosen, rejected = objective.beta * ratios.chosen, objective.beta * ratios.rejected
    return -logsigmoid(chosen) - 0.5 * logsigmoid(-chosen) - 0.5 * logsigmoid(-rejected)


def _bco_pair(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    """TRL "bco_pair": Jung et al. 2024, arXiv 2404.04656, without its shift."""
    chosen, rejected = objective.beta * ratios.chosen, objective.beta * ratios.rejected
    return -logsigmoid(chosen) - logsigmoid(-rejected)


def _sppo_hard(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    """Wu et al. 2024, arXiv 2405.00675, eq. 4.7 with a probability of 1 for the chosen one."""
    goal = 0.5 / objective.beta
    return (ratios.chosen - goal) ** 2 + (ratios.rejected + goal) ** 2


def _apo_zero(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    """D'Oosterlinck et al. 2024, arXiv 2408.06266, eq. 7."""
    chosen, rejected = objective.beta * ratios.chosen, objective.beta * ratios.rejected
    return 1 - chosen.sigmoid() + rejected.sigmoid()


def _apo_down(ratios: Ratios, objective: PreferenceObjective) -> Tensor:
    """D'Oosterlinck et al. 2024, arXiv 2408.06266, eq. 8."""
    chosen = (objective.beta * ratios.chosen).sigmoid()
    return chosen + 1 - (objective.beta * ratios.margin).sigmoid()


LOSSES: Mapping[str, Callable[[Ratios, PreferenceObjective], Tensor]] = {
    "sigmoid": _sigmoid,
    SMOOTHED_SIGMOID: _smoothed_sigmoid,
    "sigmoid_norm": _sigmoid_norm,
    "robust": _robust,
    "hinge": _hinge,
    "ipo": _ipo,
    "exo_pair": _exo_pair,
    "nca_pair": _nca_pair,
    "bco_pair": _bco_pair,
    "sppo_hard": _sppo_hard,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
}
"""By TRL's names. Not judged: aot, aot_unpaired, discopop, sft."""
