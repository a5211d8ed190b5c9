"""The metric vocabulary: one name a quantity, and what each quantity means."""

from __future__ import annotations

from pathlib import Path

import pytest

from align.core.rung import Rung
from align.frameworks.registry import frameworks
from align.frameworks.vocabulary import (
    MetricKind,
    identify_framework,
    metric_meaning,
    metric_name,
)

# Metric names in MindSpeed-RL's documentation (docs/zh/features/log_metrics.md, 2.0.0 to master).
MINDSPEED_RL_DOCUMENT = """
actor/entropy actor/kl_loss actor/lr actor/pg_clipfrac actor/pg_loss actor/ppo_kl
critic/advantages/max critic/advantages/mean critic/advantages/min critic/lr critic/returns/max
critic/returns/mean critic/returns/min critic/rewards/max critic/rewards/mean critic/rewards/min
critic/score/max critic/score/mean critic/score/min critic/values/max critic/values/mean
critic/values/min critic/vf_clipfrac critic/vf_loss e2e_tps global_batch_size grad_norm
grpo/rewards/max grpo/rewards/mean grpo/rewards/min grpo/score/max grpo/score/mean grpo/score/min
n_samples_per_prompt prompt_length/max prompt_length/mean prompt_length/min response_length/max
response_length/mean response_length/min timing/adv timing/all timing/critic_model
timing/non_overlap_adv timing/non_overlap_reference_model timing/non_overlap_reward_model
timing/non_overlap_rule_reward timing/old_log_p timing/ref_offload timing/ref_onload
timing/reference_model timing/resharding_to_infer timing/resharding_to_train timing/reward_model
timing/rollout timing/rule_reward timing/update timing/update_critic update_tps vllm_tps world_size
"""

# What transformers and TRL write for one logged step of GRPOTrainer.
TRL_LOG = """
loss grad_norm learning_rate num_tokens completions/mean_length completions/min_length
completions/max_length completions/clipped_ratio completions/mean_terminated_length
rewards/accuracy/mean rewards/accuracy/std reward reward_std frac_reward_zero_std kl entropy
clip_ratio/low_mean clip_ratio/high_max clip_ratio/region_mean epoch
sampling/sampling_logp_difference/mean sampling/importance_sampling_ratio/min
"""

MINDSPEED_RL_NAMES, TRL_NAMES = MINDSPEED_RL_DOCUMENT.split(), TRL_LOG.split()


def test_every_name_of_verl_0_9_is_its_own_vocabulary_name_and_has_a_meaning(
    reference_runs: Path,
) -> None:
    names = (reference_runs / "metric_names_v091.txt").read_text().split()
    assert len(names) == 125
    assert [name for name in names if metric_name("verl", name) != name] == []
    assert [name for name in names if metric_meaning(name).kind is MetricKind.UNKNOWN] == []


@pytest.mark.parametrize(
    "framework, names", [("mindspeed_rl", MINDSPEED_RL_NAMES), ("trl", TRL_NAMES)]
)
def test_every_documented_name_has_a_meaning(framework: str, names: list[str]) -> None:
    unknown = [
        name
        for name in names
        if metric_meaning(metric_name(framework, name)).kind is MetricKind.UNKNOWN
    ]
    assert unknown == []


@pytest.mark.parametrize(
    "framework, spelling, name",
    [
        ("verl", "actor/entropy_loss", "actor/entropy"),
        ("verl", "mfu/actor", "perf/mfu/actor"),
        ("verl", "timing/gen", "timing_s/gen"),
        ("verl", "perf/max_memory_allocated_gb", "actor/perf/max_memory_allocated_gb"),
        ("verl", "val/test_score/openai/gsm8k", "val-aux/openai/gsm8k/reward/mean@1"),
        ("verl", "val-core/openai/gsm8k/reward/mean@1", "val-aux/openai/gsm8k/reward/mean@1"),
        ("verl", "val-core/openai/gsm8k/acc/mean@1", "val-core/openai/gsm8k/acc/mean@1"),
        ("mindspeed_rl", "grpo/score/mean", "critic/score/mean"),
        ("mindspeed_rl", "train/grpo/score/mean", "critic/score/mean"),
        ("mindspeed_rl", "grpo/rewards/max", "critic/rewards/max"),
        ("mindspeed_rl", "dapo/score/min", "critic/score/min"),
        ("mindspeed_rl", "grpo/acc_rewards/mean", "acc_rewards/mean"),
        ("mindspeed_rl", "acc_rewards/mean", "acc_rewards/mean"),
        ("mindspeed_rl", "grpo/lr", "actor/lr"),
        ("mindspeed_rl", "grad_norm", "actor/grad_norm"),
        ("mindspeed_rl", "timing/all", "timing_s/step"),
        ("mindspeed_rl", "tokens/p/s", "perf/throughput"),
        ("trl", "completions/mean_length", "response_length/mean"),
        ("trl", "train/kl", "actor/kl_loss"),
        ("trl", "objective/rlhf_reward", "critic/rewards/mean"),
    ],
)
def test_a_spelling_is_translated(framework: str, spelling: str, name: str) -> None:
    assert metric_name(framework, spelling) == name


def test_the_same_spelling_of_another_formula_is_never_compared() -> None:
    verl, mindspeed_rl = (
        metric_name("verl", "actor/pg_loss"),
        metric_name("mindspeed_rl", "actor/pg_loss"),
    )
    assert verl == "actor/pg_loss"
    assert mindspeed_rl == "actor/total_loss_abs"
    assert "absolute" in metric_meaning(mindspeed_rl).meaning.en
    assert metric_name("trl", "completions/clipped_ratio") != "response_length/clip_ratio"
    assert metric_name("verl", "train/lr(1e-3)") != metric_name("verl", "train/lr")


def test_an_unknown_spelling_is_kept_and_says_it_is_unknown() -> None:
    for framework in (None, "verl", "a framework of tomorrow"):
        assert metric_name(framework, "analysis/wH_sum") == "analysis/wH_sum"
    assert metric_meaning("analysis/wH_sum").kind is MetricKind.UNKNOWN


def test_without_a_framework_nothing_is_translated() -> None:
    assert metric_name(None, "actor/entropy_loss") == "actor/entropy_loss"


def test_translating_twice_is_translating_once() -> None:
    for framework, module in frameworks().items():
        for key in getattr(module, "METRIC_KEYS", {}):
            name = metric_name(framework, key.replace("*", "x"))
            if name != "actor/total_loss_abs":
                assert metric_name(framework, name) == name


@pytest.mark.parametrize(
    "name, rung, kind",
    [
        ("prompt_length/mean", Rung.DATA, MetricKind.POSITIVE),
        ("prompt_length/max", Rung.DATA, MetricKind.EXTREME),
        ("response_length/clip_ratio", Rung.ROLLOUT, MetricKind.BOUNDED),
        ("num_turns/mean", Rung.ROLLOUT, MetricKind.POSITIVE),
        ("training/rollout_probs_diff_mean", Rung.FORWARD, MetricKind.POSITIVE),
        ("training/rollout_probs_diff_std", Rung.FORWARD, MetricKind.POSITIVE),
        ("training/rollout_actor_probs_pearson_corr", Rung.FORWARD, MetricKind.BOUNDED),
        ("rollout_corr/kl", Rung.FORWARD, MetricKind.SIGNED),
        ("rollout_corr/rollout_ppl", Rung.ROLLOUT, MetricKind.POSITIVE),
        ("actor/entropy", Rung.FORWARD, MetricKind.POSITIVE),
        ("critic/score/mean", Rung.REWARD, MetricKind.LEVEL),
        ("critic/rewards/min", Rung.REWARD, MetricKind.EXTREME),
        ("acc_rewards/mean", Rung.REWARD, MetricKind.LEVEL),
        ("critic/advantages/mean", Rung.ADVANTAGE, MetricKind.SIGNED),
        ("actor/pg_loss", Rung.LOSS, MetricKind.SIGNED),
        ("actor/kl_loss", Rung.LOSS, MetricKind.POSITIVE),
        ("actor/pg_clipfrac", Rung.LOSS, MetricKind.BOUNDED),
        ("critic/vf_loss", Rung.LOSS, MetricKind.POSITIVE),
        ("actor/grad_norm", Rung.BACKWARD, MetricKind.POSITIVE),
        ("actor/lr", Rung.OPTIMIZER, MetricKind.SCHEDULE),
        ("val-core/gsm8k/acc/mean@1", Rung.EVALS, MetricKind.LEVEL),
    ],
)
def test_a_quantity_is_on_the_link_that_computes_it(
    name: str, rung: Rung, kind: MetricKind
) -> None:
    meaning = metric_meaning(name)
    assert (meaning.rung, meaning.kind, meaning.numeric) == (rung, kind, True)


@pytest.mark.parametrize(
    "name",
    [
        "timing_s/gen",
        "timing_s/agent_loop/slowest/response_length",
        "timing_per_token_ms/update_actor",
        "perf/throughput",
        "perf/total_num_tokens",
        "actor/perf/max_memory_allocated_gb",
        "global_seqlen/mean",
        "training/global_step",
        "training/epoch",
        "train/total_tokens(B)",
        "vllm_tps",
        "fully_async/count/staleness_samples",
    ],
)
def test_time_memory_and_bookkeeping_are_never_a_divergence(name: str) -> None:
    assert not metric_meaning(name).numeric


def test_every_meaning_is_written_in_both_languages() -> None:
    for name in ("actor/kl_loss", "timing_s/gen", "analysis/wH_sum"):
        meaning = metric_meaning(name).meaning
        assert meaning.en.isascii()
        assert any("\u4e00" <= character <= "\u9fff" for character in meaning.zh)


def test_the_framework_is_told_by_what_only_it_writes() -> None:
    assert identify_framework(MINDSPEED_RL_NAMES) == "mindspeed_rl"
    assert identify_framework(f"train/{name}" for name in MINDSPEED_RL_NAMES) == "mindspeed_rl"
    assert identify_framework(TRL_NAMES) == "trl"
    assert identify_framework(["step", "critic/score/mean", "timing_s/gen"]) == "verl"
    assert identify_framework(["critic/score/mean", "actor/kl_loss"]) is None
    assert identify_framework([]) is None


def test_a_framework_is_one_file_of_the_folder() -> None:
    assert {"mindspeed_rl", "trl", "verl"} <= set(frameworks())
