"""Links from the scores of the responses to the advantages of their tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from align.core.config_value import ConfigLeaf, EffectiveConfig
from align.core.text import Text
from align.objective.dapo import overlong_penalty
from align.objective.kl import kl_estimate
from align.referee.estimates import as_computed, declared_estimate
from align.referee.link import Link, LinkVerdict, not_recorded
from align.referee.step_batch import StepBatch
from align.rollout.advantage_formulas import formula_of
from align.rollout.estimators import Reads
from align.rollout.estimators_declared import (
    BY_STD,
    Declared,
    declared_estimator,
    unknown_setting,
)
from align.rollout.group_advantages import TOLERANCE, prompt_groups

_FLOAT32 = 2.0**-23


def reward_link(batch: StepBatch, config: EffectiveConfig) -> Link:
    """Hold the rewards the trainer used against the dumped scores and declared penalties."""
    values = {name: value.value for name, value in config.values.items()}
    terms = ["score"]
    terms += ["overlong penalty"] if values.get("reward.overlong_penalty") is True else []
    terms += ["KL penalty"] if values.get("reward.use_kl_in_reward") is True else []
    declared = Text(" + ".join(terms), " + ".join(terms))
    found = batch.get("token_level_rewards", "response_mask")
    if found is None or batch.trained is None or not np.isfinite(batch.trained.dumped).any():
        return not_recorded("rewards", declared, _NO_SCORES)
    rewards, mask = found
    expected = torch.from_numpy(batch.trained.dumped).clone()
    if "overlong penalty" in terms:
        expected = expected + _overlong(values, mask)
    if "KL penalty" in terms:
        penalty = _kl_penalty(values, batch, mask)
        if penalty is None:
            return Link("rewards", declared, LinkVerdict.UNKNOWN, note=_MOVING_KL)
        expected = expected + penalty
    tolerance = 64 * _FLOAT32 * max(1.0, float(rewards.abs().sum(-1).max()))
    return _worst("rewards", declared, rewards.sum(-1), expected, tolerance)


def advantage_link(batch: StepBatch, config: EffectiveConfig) -> Link:
    """Hold the advantages against those of the trainer's own rewards."""
    values = {name: value.value for name, value in config.values.items()}
    estimator = values.get("advantage.estimator")
    if values.get("loss.options.algorithm") == "dpo":
        return Link("advantages", Text("dpo", "dpo"), LinkVerdict.UNKNOWN, note=_NO_ESTIMATOR)
    of_rewards = declared_estimator(config)
    name = f"{estimator}{'' if of_rewards is None else _scaling(of_rewards)}"
    declared = Text(name, name)
    found = batch.get("advantages", "response_mask", "token_level_rewards")
    if found is None:
        return not_recorded("advantages", declared, _NO_ADVANTAGES)
    recorded, mask, rewards = found
    expected = _expected(config, of_rewards, batch, mask, rewards)
    if expected is None:
        return Link("advantages", declared, LinkVerdict.UNKNOWN, note=_NO_ESTIMATOR)
    own = mask.bool()
    link = _worst("advantages", declared, recorded[own], expected[own], TOLERANCE.value)
    if link.verdict is LinkVerdict.DIFFERS and of_rewards is not None:
        formula = None
        if batch.trained is not None and batch.trained.least is not None:
            formula = formula_of([batch.trained], of_rewards)
        return replace(link, note=_NO_FORMULA if formula is None else formula.what)
    return link


def _scaling(declared: Declared) -> str:
    if Reads.SCALING not in declared.estimator.reads:
        return ""
    return " / std" if declared.settings.scaling.by_std else " without std"


def _expected(
    config: EffectiveConfig,
    of_rewards: Declared | None,
    batch: StepBatch,
    mask: Tensor,
    rewards: Tensor,
) -> Tensor | None:
    """[b, r] as declared; None for an estimator that is not recomputed."""
    estimate, found = declared_estimate(config), batch.get("values")
    if estimate is not None and found is not None:
        return as_computed(estimate, batch).whitened(rewards, found[0], mask)
    if of_rewards is None or unknown_setting(config, of_rewards) not in (None, BY_STD):
        return None  # where nothing sets the std, older versions divide by it
    if batch.trained is not None:
        groups = prompt_groups(batch.trained)
    elif Reads.GROUPS in of_rewards.estimator.reads:
        return None
    else:
        groups = np.zeros(len(mask), np.int64)
    signals = rewards.numpy(), mask.numpy().astype(np.float64), groups
    return torch.from_numpy(of_rewards.estimator.advantages(*signals, of_rewards.settings))


def _overlong(values: dict[str, ConfigLeaf], mask: Tensor) -> Tensor:
    limit = values.get("reward.overlong_max_length") or values.get("data.max_response_length")
    length, factor = (
        values.get(f"reward.overlong_{name}") for name in ("buffer", "penalty_factor")
    )
    return overlong_penalty(
        mask.sum(-1),
        max_response_length=int(limit) if isinstance(limit, int | float) else mask.shape[1],
        buffer_length=int(length) if isinstance(length, int | float) else 1,
        penalty_factor=float(factor) if isinstance(factor, int | float) else 1.0,
        bounded=values.get("loss.options.definitions") == "mindspeed_rl",
        dtype=torch.float64,
    )


def _kl_penalty(values: dict[str, ConfigLeaf], batch: StepBatch, mask: Tensor) -> Tensor | None:
    """[b], negative; None where the coefficient moves or a model's log_probs are missing."""
    found, coefficient = batch.get("old_log_probs", "ref_log_prob"), values.get("reward.kl_coef")
    fixed = values.get("reward.kl_control") == "fixed" and isinstance(coefficient, int | float)
    if found is None or not fixed:
        return None
    policy, reference = found
    kl = kl_estimate(policy, reference, str(values.get("reward.kl_penalty") or "kl"))
    return -float(coefficient) * (kl * mask).sum(-1)  # type: ignore[arg-type]


def _worst(name: str, declared: Text, recorded: Tensor, expected: Tensor, tolerance: float) -> Link:
    """Judge all values, and show the one that departs most; NaN expectations are not judged."""
    judged = torch.isfinite(expected)
    if not judged.any():
        return Link(name, declared, LinkVerdict.UNKNOWN, note=_NO_SPREAD)
    mine, other = recorded[judged], expected[judged]
    allowed = tolerance * other.abs().clamp(min=1.0)
    excess = (mine - other).abs() / allowed
    at = int(torch.nan_to_num(excess, nan=torch.inf).argmax())
    count = int((~(excess <= 1)).sum())
    return Link(
        name,
        declared,
        LinkVerdict.DIFFERS if count else LinkVerdict.AS_DECLARED,
        float(mine[at]),
        float(other[at]),
        float(allowed[at]),
        Text(f"{count} of {len(mine)} differ", f"{len(mine)} 个中有 {count} 个不同")
        if count
        else None,
    )


_NO_SCORES = Text(
    "needs token_level_rewards and the rollout dump with scores and token ids",
    "需要 token_level_rewards 以及带得分与 token id 的 rollout 数据",
)
_NO_ADVANTAGES = Text(
    "needs token_level_rewards and advantages", "需要 token_level_rewards 与 advantages"
)
_NO_ESTIMATOR = Text(
    "this estimator is not recomputed, or its groups or values are not recorded",
    "不重算这种估计方法，或未记录其分组或 values",
)
_MOVING_KL = Text("the KL coefficient moves from step to step", "KL 系数逐步变化")
_NO_FORMULA = Text("no other formula tried gives all of them", "所尝试的其他公式都不能给出全部数值")
_NO_SPREAD = Text("the scores of every group are equal", "每个组内的得分都相同")
