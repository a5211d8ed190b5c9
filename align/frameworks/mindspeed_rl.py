"""MindSpeed-RL, 2025-03 to 2.3.0 and master of 2026-04: what it calls things."""

from __future__ import annotations

from align.frameworks import mindspeed_rl_config

NAME = "mindspeed_rl"
CONFIG = mindspeed_rl_config

METRIC_KEYS: dict[str, str] = {
    # abs(pg + kl_coef * kl - entropy_coef * entropy); verl's actor/pg_loss is the signed pg alone.
    "actor/pg_loss": "actor/total_loss_abs",
    "actor/lr": "actor/lr",
    "grpo/lr": "actor/lr",
    "grad_norm": "actor/grad_norm",
    # Sum of a response's reward. To 2.1.0 the rule reward was normalised within its group first:
    # the run's values tell, see METRIC_NORMALISED.
    "grpo/score/*": "critic/score/*",
    "grpo/rewards/*": "critic/rewards/*",
    "dapo/score/*": "critic/score/*",
    "dapo/rewards/*": "critic/rewards/*",
    "grpo/advantages/*": "critic/advantages/*",
    "grpo/returns/*": "critic/returns/*",
    # Mean of one verifier; with this prefix to 2.1.0, without it from 2.2.0.
    "grpo/*_rewards/mean": "*_rewards/mean",
    "timing/all": "timing_s/step",
    "timing/rollout": "timing_s/gen",
    "timing/gen": "timing_s/gen",
    "timing/update": "timing_s/update_actor",
    "timing/update_actor": "timing_s/update_actor",
    "timing/update_critic": "timing_s/update_critic",
    "timing/critic_model": "timing_s/values",
    "timing/old_log_p": "timing_s/old_log_prob",
    "timing/reference_model": "timing_s/ref",
    "timing/ref": "timing_s/ref",
    "timing/rule_reward": "timing_s/reward",
    "timing/adv": "timing_s/adv",
    # Tokens of prompt and response per second and device, as verl's.
    "e2e_tps": "perf/throughput",
    "tokens/p/s": "perf/throughput",
    "vllm_throughput": "vllm_tps",
}

METRIC_PREFIX = "train/"  # its TensorBoard writer

METRIC_SIGNS = (
    "grpo/*",
    "dapo/*",
    "e2e_tps",
    "update_tps",
    "vllm_tps",
    "tokens/p/s",
    "vllm_throughput",
    "n_samples_per_prompt",
    "timing/all",
    "timing/rollout",
    "timing/old_log_p",
    "timing/reference_model",
    "timing/rule_reward",
    "timing/non_overlap_*",
    "timing/resharding_*",
    "timing/critic_model",
)

# To 2.1.0, whose logs have this spelling, rule_verifier.py and reward_woker.py subtract the group's
# mean and divide by its deviation before the reward is logged; from 2.2.0 it is logged as it is.
METRIC_NORMALISED_BESIDE = "grpo/rewards/mean"
METRIC_NORMALISED = {
    "critic/score": "critic/score_group_normalised",
    "critic/rewards": "critic/rewards_group_normalised",
}

METRIC_ABSENT_WHEN_ZERO = {
    # grpo_actor_loss_func.py: entropy is not computed when its coefficient is 0.
    "actor/entropy": "is logged as 0 when the entropy coefficient is 0",
}
