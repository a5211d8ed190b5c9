"""What choosing an algorithm or a numerics profile sets, unless the user sets it himself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from align.stack.numerics import PROFILES

_ACTOR = "actor_rollout_ref.actor"

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "ppo": {"algorithm.adv_estimator": "gae", f"{_ACTOR}.use_kl_loss": False},
    "dapo": {
        f"{_ACTOR}.clip_ratio_low": 0.2,
        f"{_ACTOR}.clip_ratio_high": 0.28,
        f"{_ACTOR}.loss_agg_mode": "token-mean",
        f"{_ACTOR}.use_kl_loss": False,
        "algorithm.filter_groups.enable": True,
        "reward_model.reward_kwargs.overlong_buffer_cfg.enable": True,
    },
    "dpo": {f"{_ACTOR}.use_kl_loss": False},
}

DTYPES: Mapping[str, str] = {  # profile -> dtype the model computes in, as verl spells it
    name: str(profile.dtype).removeprefix("torch.") for name, profile in PROFILES.items()
}
