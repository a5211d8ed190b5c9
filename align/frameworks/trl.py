"""TRL 0.9 to 1.x (GRPOTrainer, PPOTrainer, DPOTrainer): what it calls things.

``loss`` keeps its spelling: each trainer means another sum by it. ``completions/clipped_ratio``
counts responses without end token, verl's clip_ratio those of the greatest length.
"""

from __future__ import annotations

from align.frameworks import trl_config

NAME = "trl"
CONFIG = trl_config

METRIC_KEYS: dict[str, str] = {
    # every trainer
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "lr": "actor/lr",
    "epoch": "training/epoch",
    # GRPOTrainer
    "reward": "critic/score/mean",  # weighted sum of the reward functions, before any KL
    "kl": "actor/kl_loss",  # token mean of the low-variance estimator, without beta
    "entropy": "actor/entropy",
    "clip_ratio": "actor/pg_clipfrac",
    "clip_ratio/region_mean": "actor/pg_clipfrac",
    "completion_length": "response_length/mean",
    "completions/mean_length": "response_length/mean",
    "completions/max_length": "response_length/max",
    "completions/min_length": "response_length/min",
    "step_time": "timing_s/step",
    # PPOTrainer
    "objective/scores": "critic/score/mean",
    "objective/rlhf_reward": "critic/rewards/mean",
    "policy/clipfrac_avg": "actor/pg_clipfrac",
    "loss/policy_avg": "actor/pg_loss",
    "loss/value_avg": "critic/vf_loss",
    "val/clipfrac_avg": "critic/vf_clipfrac",
}

METRIC_PREFIX = "train/"  # of transformers' TensorBoard and wandb callbacks

METRIC_SIGNS = (
    "learning_rate",
    "reward_std",
    "frac_reward_zero_std",
    "completions/*",
    "completion_length",
    "clip_ratio/*",
    "sampling/*",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "rewards/margins",
    "logps/*",
    "objective/*",
    "policy/approxkl_avg",
    "policy/clipfrac_avg",
    "loss/policy_avg",
    "loss/value_avg",
    "train_runtime",
)
