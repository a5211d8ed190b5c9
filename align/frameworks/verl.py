"""verl, 0.1 to 0.9: what it calls things. Its 0.9 spelling is our vocabulary."""

from __future__ import annotations

from align.frameworks import verl_config

NAME = "verl"
CONFIG = verl_config

METRIC_KEYS: dict[str, str] = {
    # 0.1 and 0.2
    "timing/*": "timing_s/*",
    "mfu/*": "perf/mfu/*",
    "critic/kl": "actor/reward_kl_penalty",
    "critic/kl_coeff": "actor/reward_kl_penalty_coeff",
    # The mean sum of rewards on the test set: what later versions call the variable "reward".
    "val/test_score/*": "val-aux/*/reward/mean@1",
    # to 0.4
    "actor/entropy_loss": "actor/entropy",
    # The reward is "core" only where a reward function returns no "acc"; the quantity is one.
    "val-core/*/reward/mean@1": "val-aux/*/reward/mean@1",
    # V0 trainers
    "perf/max_memory_allocated_gb": "actor/perf/max_memory_allocated_gb",
    "perf/max_memory_reserved_gb": "actor/perf/max_memory_reserved_gb",
    "perf/cpu_memory_used_gb": "actor/perf/cpu_memory_used_gb",
}

# Only the V1 trainer prints the key; it counts what is as long as the batch's longest, not what
# reaches the limit.
METRIC_VARIANTS = {
    "training/off_policy/trajectory_spans/mean": {
        f"{length}/clip_ratio": f"{length}/share_of_longest"
        for length in ("prompt_length", "response_length", "response_length_non_aborted")
    }
}

METRIC_SIGNS = (
    "timing_s/*",
    "timing_per_token*",
    "perf/*",
    "mfu/*",
    "global_seqlen/*",
    "rollout_corr/*",
    "val-core/*",
    "val-aux/*",
    "val/test_score/*",
    "actor/entropy_loss",
    "actor/pg_clipfrac_lower",
    "critic/kl_coeff",
    "response_length/clip_ratio",
    "training/global_step",
    "training/rollout_probs_diff_*",
    "fully_async/*",
    "train/lr(1e-3)",
    "train/mfu",
    "train/global_tokens",
    "train/total_tokens(B)",
)
