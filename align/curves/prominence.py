"""Which metrics a reader wants to see first."""

from __future__ import annotations

_FIRST = (
    "critic/score/mean",
    "critic/rewards/mean",
    "train/loss",
    "response_length/mean",
    "actor/entropy",
    "actor/kl_loss",
    "actor/grad_norm",
    "train/grad_norm",
    "actor/pg_loss",
    "actor/ppo_kl",
    "actor/lr",
    "train/lr",
    "training/rollout_probs_diff_mean",
    "critic/vf_loss",
    "response_length/clip_ratio",
    "actor/pg_clipfrac",
)
_RANK = {name: rank for rank, name in enumerate(_FIRST)}


def prominence(name: str) -> tuple[int, str]:
    """Return a sort key: the curves a review starts with, then all others by name."""
    return _RANK.get(name, len(_RANK)), name
