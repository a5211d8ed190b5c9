"""Which metrics a reader wants to see first, and which are one task's share of another."""

from __future__ import annotations

import re

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


_TASKS = (
    re.compile(r"(?P<task>.+)_rewards/mean"),  # MindSpeed-RL's rules
    re.compile(r"rewards/(?P<task>.+)/mean"),  # TRL's reward functions
    re.compile(r"val-core/(?P<task>.+?)/(acc|reward|score)/mean@\d+"),  # verl's data sources
    re.compile(r"val/test_score/(?P<task>.+)"),  # the same before verl 0.3
    re.compile(r"critic/(score|rewards)/(?!(mean|max|min|std)$)(?P<task>.+)"),
)


def task_of(name: str) -> str | None:
    """Return the task, rule or data source whose reward a metric is; None for any other metric."""
    found = (pattern.fullmatch(name) for pattern in _TASKS)
    return next((match["task"] for match in found if match), None)
