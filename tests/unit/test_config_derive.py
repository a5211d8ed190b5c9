"""Quantities that follow from a configuration, against hand calculation and closed forms."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.config.derive import derive, learning_rates
from align.config.derive.divisibility import divisibility
from align.config.derive.learning_rate import course_difference
from align.config.derive.lengths import rows_kept
from align.config.derive.memory import memory_estimate
from align.config.derive.parameters import parameters
from align.config.diff import compare_configs
from align.config.normalise import effective
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.core.run import RunManifest
from dumps.store.discover import discover
from dumps.store.run_data import RunData

Settings = dict[str, ConfigLeaf]

FSDP: Settings = {
    "actor.strategy": "fsdp",
    "trainer.world_size": 16,
    "data.train_batch_size": 1024,
    "actor.mini_batch_size": 256,
    "actor.micro_batch_size": 4,
    "actor.dynamic_batch": False,
    "actor.ppo_epochs": 1,
    "rollout.n": 5,
    "rollout.tensor_parallel_size": 2,
    "data.max_prompt_length": 1024,
    "data.max_response_length": 3072,
}
MEGATRON: Settings = {
    **FSDP,
    "actor.strategy": "megatron",
    "actor.tensor_parallel_size": 4,
    "actor.pipeline_parallel_size": 2,
    "actor.context_parallel_size": 1,
}
SCHEDULE: Settings = {
    "actor.strategy": "fsdp",
    "actor.lr": 1e-6,
    "actor.lr_schedule": "cosine",
    "actor.min_lr": 0.0,
    "actor.lr_warmup_fraction": 0.1,
    "trainer.total_steps": 220,
    "critic.warmup_steps": 0,
    "data.train_batch_size": 32,
    "actor.mini_batch_size": 8,
    "actor.ppo_epochs": 1,
    "rollout.n": 8,
}
QWEN25_7B: Settings = {
    "model.num_layers": 28,
    "model.hidden_size": 3584,
    "model.intermediate_size": 18944,
    "model.num_attention_heads": 28,
    "model.num_key_value_heads": 4,
    "model.vocab_size": 152064,
    "model.tie_word_embeddings": False,
    "model.qkv_bias": True,
}
QWEN25_05B: Settings = {
    "model.num_layers": 24,
    "model.hidden_size": 896,
    "model.intermediate_size": 4864,
    "model.num_attention_heads": 14,
    "model.num_key_value_heads": 2,
    "model.vocab_size": 151936,
    "model.tie_word_embeddings": True,
    "model.qkv_bias": True,
}
QWEN3_30B_A3B: Settings = {
    "model.num_layers": 48,
    "model.hidden_size": 2048,
    "model.intermediate_size": 6144,
    "model.num_attention_heads": 32,
    "model.num_key_value_heads": 4,
    "model.head_dim": 128,
    "model.vocab_size": 151936,
    "model.tie_word_embeddings": False,
    "model.qkv_bias": False,
    "model.qk_norm": True,
    "model.num_experts": 128,
    "model.moe_intermediate_size": 768,
}


def stated(settings: Settings) -> dict[str, EffectiveValue]:
    place = Provenance(ProvenanceKind.FILE, "test.yaml")
    return {
        name: EffectiveValue(name, value, ConfigValue(name, value, place))
        for name, value in settings.items()
    }


def derived(settings: Settings, framework: str = "verl", **more: object) -> Settings:
    made = derive(stated(settings), framework, **more)  # type: ignore[arg-type]
    return {name.removeprefix("derived."): value.value for name, value in made.items()}


def config(settings: Settings, framework: str = "verl") -> EffectiveConfig:
    values = stated(settings)
    return EffectiveConfig(framework, None, values | derive(values, framework))


def changed(reference: EffectiveConfig, candidate: EffectiveConfig) -> dict[str, str]:
    findings = compare_configs(reference, candidate).findings
    return {finding.id.removeprefix("config."): finding.why.en for finding in findings}


def test_one_batch_is_split_as_by_hand() -> None:
    # 1024 × 5 = 5120 sequences; 4 updates of 1280; 16 FSDP ranks of 80, in 20 micro-batches of 4
    made = derived(FSDP)
    assert made["sequences_per_iteration"] == 5120
    assert made["sequences_per_optimizer_step"] == 1280
    assert made["optimizer_steps_per_iteration"] == 4
    assert made["on_policy"] is False
    assert made["data_parallel_size"] == 16
    assert made["sequences_per_rank"] == 80
    assert made["micro_batches"] == 20
    assert made["tokens_per_micro_batch"] == 4 * 4096
    assert made["tokens_per_rank"] == 80 * 4096
    assert made["rollout_sequences_per_engine"] == 640  # 5120 over 16 / 2 engines


def test_megatron_ranks_share_a_sequence() -> None:
    made = derived(MEGATRON)
    assert (made["data_parallel_size"], made["sequences_per_rank"]) == (2, 640)
    assert made["micro_batches"] == 160


def test_a_token_budget_leaves_the_number_of_micro_batches_open() -> None:
    budget = {**FSDP, "actor.dynamic_batch": True, "actor.max_tokens_per_micro_batch": 16384}
    made = derived({**budget, "actor.context_parallel_size": 4})
    assert "micro_batches" not in made
    assert made["tokens_per_micro_batch"] == 4 * 16384  # Ulysses: four devices hold a sequence


@given(
    *(st.integers(1, 64) for _ in range(2)),
    *(st.integers(1, 8) for _ in range(4)),
    st.integers(1, 500),
)
def test_sequences_are_conserved_from_the_batch_to_the_rank(
    mini: int, micro: int, updates: int, n: int, epochs: int, ranks: int, steps: int
) -> None:
    made = derived(
        {
            "actor.strategy": "fsdp",
            "trainer.world_size": ranks,
            "data.train_batch_size": mini * updates,
            "actor.mini_batch_size": mini,
            "actor.micro_batch_size": micro,
            "actor.ppo_epochs": epochs,
            "rollout.n": n,
            "trainer.total_steps": steps,
        }
    )
    numbers = {name: value for name, value in made.items() if isinstance(value, int | float)}
    trained = numbers["sequences_per_optimizer_step"] * numbers["optimizer_steps_per_iteration"]
    assert trained == pytest.approx(numbers["sequences_per_iteration"] * epochs)
    per_update = numbers["sequences_per_rank"] * ranks
    assert per_update == pytest.approx(numbers["sequences_per_optimizer_step"])
    assert (numbers["micro_batches"] - 1) * micro < numbers["sequences_per_rank"]
    assert numbers["micro_batches"] * micro >= numbers["sequences_per_rank"] - 1e-9
    assert numbers["optimizer_steps"] == numbers["optimizer_steps_per_iteration"] * steps


def test_one_other_batch_size_is_one_finding() -> None:
    found = changed(config(FSDP), config({**FSDP, "actor.mini_batch_size": 512}))
    assert list(found) == ["actor.mini_batch_size"]
    assert changed(config(FSDP), config(dict(FSDP))) == {}


def test_total_steps_follow_from_rows_and_epochs() -> None:
    # 7473 rows in batches of 1024: 7 whole batches an epoch, as verl's drop_last leaves them
    epochs = {**FSDP, "trainer.total_epochs": 15}
    made = derived(epochs, rows=7473)
    assert (made["total_steps"], made["optimizer_steps"]) == (105, 420)
    assert "total_steps" not in derived(epochs)
    steps = derived({**FSDP, "trainer.total_steps": 105, "trainer.total_epochs": None}, rows=7473)
    assert (steps["total_steps"], steps["epochs"]) == (105, 15)


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(0, 12))
def test_verl_keeps_the_row_at_the_limit_and_mindspeed_rl_does_not(
    lengths: list[int], longest: int
) -> None:
    verl = rows_kept("length <= max_prompt_length", longest, lengths)
    mindspeed_rl = rows_kept("length < max_prompt_length", longest, lengths)
    assert verl is not None and mindspeed_rl is not None
    assert verl - mindspeed_rl == lengths.count(longest)
    assert rows_kept("no filter", longest, lengths) == len(lengths)
    assert rows_kept("own filter", longest, lengths) is None


def test_rows_kept_decide_the_length_of_training() -> None:
    settings = {**FSDP, "data.train_batch_size": 2, "trainer.total_epochs": 3}
    settings["data.length_filter"] = "length <= max_prompt_length"
    made = derived(settings, prompt_lengths=[10, 1024, 1025, 12, 9])
    assert (made["rows_kept"], made["total_steps"]) == (4, 6)


def warmup_cosine(step: int, warmup: int, total: int) -> float:
    """Half a cosine to 0 after a linear warmup; the closed form, not our code."""
    if step < warmup:
        return 1e-6 * step / warmup
    return 1e-6 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def test_the_rate_of_every_step_is_the_closed_form() -> None:
    rates = learning_rates(stated(SCHEDULE), "verl")
    assert rates is not None and rates.dtype == np.float64
    expected = [warmup_cosine(step, 22, 220) for step in range(220)]
    assert rates == pytest.approx(expected, rel=1e-12, abs=1e-20)


def test_mindspeed_rl_counts_sequences_against_a_decay_in_prompts() -> None:
    # n = 8: 220 iterations of 32 prompts are 7040 counts, and one iteration counts 256
    made = derived(SCHEDULE, "mindspeed_rl")
    assert (made["warmup_steps"], made["decay_steps"]) == (2.75, 27.5)
    rates = learning_rates(stated(SCHEDULE), "mindspeed_rl")
    assert rates is not None
    assert rates[27] == pytest.approx(1e-6 * 0.5 * (1 + math.cos(math.pi * 24.25 / 24.75)))
    assert (rates[28:] == 0).all()


def test_equal_settings_of_two_frameworks_are_one_finding_about_the_course() -> None:
    pair = config(SCHEDULE, "verl"), config({**SCHEDULE, "actor.strategy": "fsdp"}, "mindspeed_rl")
    found = changed(*pair)
    assert list(found) == ["derived.learning_rate_course"]
    assert "first differ at step 2" in found["derived.learning_rate_course"]
    assert "learning rate is 0 for the last 192 of 220 steps" in str(found)
    assert "declares cosine over 220 steps and decays over 27.5" in str(found)


def test_a_constant_rate_has_one_course_in_both_frameworks() -> None:
    flat = {**SCHEDULE, "actor.lr_schedule": "constant", "actor.lr_warmup_fraction": 0.0}
    assert changed(config(flat, "verl"), config(flat, "mindspeed_rl")) == {}


def test_a_decay_without_its_warmup_is_named_with_the_steps_at_zero() -> None:
    # The field report: absolute decay steps with the warmup taken off again, 198 of 220.
    right: Settings = {
        **SCHEDULE,
        "actor.strategy": "megatron",
        "actor.lr_options.decay_steps": 220,
        "actor.lr_warmup_steps": 22,
    }
    wrong = {**right, "actor.lr_options.decay_steps": 198}
    found = changed(config(right), config(wrong))
    assert list(found) == ["actor.lr_options.decay_steps"]
    said = found["actor.lr_options.decay_steps"]
    assert "learning rate is 0 for the last 22 of 220 steps" in said
    assert "declares cosine over 220 steps and decays over 198" in said


def test_the_same_warmup_in_steps_and_as_a_fraction_makes_no_difference() -> None:
    steps = {**SCHEDULE, "actor.lr_warmup_steps": 22, "actor.lr_warmup_fraction": 0.0}
    difference = course_difference(config(SCHEDULE), config(steps))
    assert difference is not None and difference.first_step is None
    assert changed(config(SCHEDULE), config({**steps, "actor.lr_warmup_fraction": 0.1})) == {}


@given(st.integers(2, 400), st.floats(0, 0.9), st.sampled_from(["constant", "cosine"]))
def test_the_gap_of_two_courses_is_the_greatest_of_all_steps(
    total: int, fraction: float, style: str
) -> None:
    one: Settings = {**SCHEDULE, "trainer.total_steps": total, "actor.lr_schedule": style}
    other = {**one, "actor.lr_warmup_fraction": fraction}
    difference = course_difference(config(one), config(other))
    rates = [learning_rates(stated(s), "verl") for s in (one, other)]
    assert difference is not None and rates[0] is not None and rates[1] is not None
    gap = np.abs(rates[0] - rates[1])
    assert difference.greatest == pytest.approx(gap.max())
    assert (difference.first_step is None) == (gap.max() == 0)
    same = config(one).values["derived.learning_rate_course"].value
    assert (same == config(other).values["derived.learning_rate_course"].value) == (gap.max() == 0)


def test_a_schedule_that_is_not_known_has_no_course() -> None:
    for gap in ("actor.lr", "actor.lr_schedule", "actor.min_lr", "trainer.total_steps"):
        settings = {name: value for name, value in SCHEDULE.items() if name != gap}
        assert learning_rates(stated(settings), "verl") is None
        assert "learning_rate_course" not in derived(settings)
    odd: list[Settings] = [
        {"actor.strategy": "veomni"},
        {"actor.lr_schedule": "power"},
        {"actor.lr_options.min_lr": 1e-8},
        {"critic.warmup_steps": 5},
        {"trainer.mode.async.require_batches": 4},
        {"trainer.total_steps": 10**15},
    ]
    for change in odd:
        assert learning_rates(stated({**SCHEDULE, **change}), "verl") is None
    assert learning_rates(stated(SCHEDULE), None) is None


@pytest.mark.parametrize(
    ("in_loss", "in_reward", "control", "placement", "coefficient"),
    [
        (True, False, "fixed", "loss", "0.001 in the loss, fixed"),
        (False, True, "fixed", "reward", "0.02 in the reward, fixed"),
        (
            False,
            True,
            "adaptive",
            "reward",
            "from 0.02 in the reward, adaptive to KL 0.1 over 10000 samples",
        ),
        (True, True, "fixed", "both", "0.001 in the loss, fixed; 0.02 in the reward, fixed"),
        (False, False, "fixed", "none", "none"),
    ],
)
def test_the_kl_is_placed_and_its_coefficient_told(
    in_loss: bool, in_reward: bool, control: str, placement: str, coefficient: str
) -> None:
    made = derived(
        {
            "loss.use_kl": in_loss,
            "loss.kl_coef": 0.001,
            "reward.use_kl_in_reward": in_reward,
            "reward.kl_coef": 0.02,
            "reward.kl_control": control,
            "reward.kl_target": 0.1,
            "reward.kl_horizon": 10000,
        }
    )
    assert (made["kl_placement"], made["kl_coefficient"]) == (placement, coefficient)


def problems(settings: Settings, framework: str | None = None) -> list[tuple[str, str]]:
    found = divisibility(stated(settings), framework)
    assert all(problem.text.zh and problem.fix.zh for problem in found)
    return [(problem.field, f"{problem.text.en} | {problem.fix.en}") for problem in found]


ALL: Settings = {
    **MEGATRON,
    **QWEN25_7B,
    "model.num_experts": 8,
    "actor.expert_parallel_size": 4,
    "actor.context_parallel_size": 2,
}


def test_sizes_that_divide_are_no_problem() -> None:
    assert problems(FSDP) == []
    assert problems(ALL) == []
    assert problems(ALL, "mindspeed_rl") == []
    assert problems({}) == []


@pytest.mark.parametrize(
    ("change", "field", "quoted"),
    [
        ({"trainer.world_size": 24}, "trainer.world_size", "tensor_parallel_size 4"),
        ({"actor.mini_batch_size": 300}, "data.train_batch_size", "mini_batch_size 300"),
        ({"actor.micro_batch_size": 7}, "actor.micro_batch_size", "1280"),
        ({"model.num_attention_heads": 30}, "actor.tensor_parallel_size", "heads 30"),
        ({"model.num_key_value_heads": 2}, "actor.tensor_parallel_size", "heads 2"),
        ({"model.num_layers": 27}, "actor.pipeline_parallel_size", "layers 27"),
        ({"model.num_experts": 6}, "actor.expert_parallel_size", "experts 6"),
        ({"data.max_response_length": 3073}, "data.max_response_length", "by 3."),
        ({"rollout.tensor_parallel_size": 3}, "rollout.tensor_parallel_size", "heads 28"),
    ],
)
def test_what_does_not_divide_is_named_with_its_numbers(
    change: Settings, field: str, quoted: str
) -> None:
    found = dict(problems({**ALL, **change}))
    assert quoted in found[field]


def test_a_batch_that_does_not_divide_by_its_cards_is_told_the_multiple_it_needs() -> None:
    # train_batch_size × n = 60 × 5 = 300 over 16 devices; 5 and 16 share no factor
    small: Settings = {**FSDP, "data.train_batch_size": 60, "actor.mini_batch_size": 60}
    found = problems(small)
    text = dict(found)["data.train_batch_size"]
    assert "= 300 is not divisible by trainer.world_size 16" in text
    assert "to a multiple of 16" in text


def test_layers_given_out_by_hand_and_packed_sequences_need_not_divide() -> None:
    by_hand: Settings = {"model.num_layers": 27, "actor.parallel_options.num_layer_list": "13,14"}
    assert problems({**ALL, **by_hand}) == []
    assert problems({**ALL, "data.max_response_length": 3073, "model.remove_padding": True}) == []


def test_mindspeed_rl_wants_whole_prompts_on_every_rank() -> None:
    odd = {**ALL, "actor.context_parallel_size": 1, "data.train_batch_size": 5, "rollout.n": 4}
    odd |= {"actor.mini_batch_size": 5, "actor.micro_batch_size": 2}
    assert problems(odd) == []
    assert [field for field, _ in problems(odd, "mindspeed_rl")] == ["data.train_batch_size"]


@given(*(st.integers(1, 64) for _ in range(4)))
def test_a_batch_is_refused_exactly_where_a_rank_would_hold_part_of_a_sequence(
    prompts: int, n: int, world: int, micro: int
) -> None:
    found = problems(
        {
            "actor.strategy": "fsdp",
            "trainer.world_size": world,
            "data.train_batch_size": prompts,
            "actor.mini_batch_size": prompts,
            "actor.micro_batch_size": micro,
            "rollout.n": n,
        }
    )
    refused = {field for field, _ in found}
    assert ("data.train_batch_size" in refused) == bool(prompts * n % world)
    assert ("actor.micro_batch_size" in refused) == bool(prompts * n % (world * micro))


@pytest.mark.parametrize(
    ("model", "published"),
    [(QWEN25_7B, 7_615_616_512), (QWEN25_05B, 494_032_768), (QWEN3_30B_A3B, 30_532_122_624)],
)
def test_parameters_are_those_of_the_published_checkpoints(model: Settings, published: int) -> None:
    counted = parameters(stated(model))
    assert counted is not None and counted.total == published


def test_memory_of_a_step_is_the_hand_calculation() -> None:
    settings = {**FSDP, **QWEN25_7B, "actor.master_dtype": "float32"}
    items = {item.name.en: item for item in memory_estimate(stated(settings))}
    # 5120 / 16 = 320 rows of 4096 tokens, 3072 of them responses
    ids = items["input_ids, attention_mask, position_ids"]
    assert ids.num_bytes == 320 * 4096 * 3 * 8
    assert items["responses, response_mask"].num_bytes == 320 * 3072 * 2 * 8
    logits = items["logits of one micro-batch in float32"]
    assert logits.num_bytes == 4 * 4096 * 152064 * 4
    assert logits.formula == ("16384 tokens / 1 (CP) × 152064 rows / 1 (TP) × 4 bytes")
    states = [items[name].num_bytes for name in ("parameters", "gradients", "Adam's moments")]
    share = 7_615_616_512 / 16
    assert states == [share * 4, share * 4, share * 8]


def test_the_distributed_optimizer_divides_the_states_by_the_ranks() -> None:
    # TP 4 × PP 2 of 16 devices: 2 ranks; bfloat16 weights with float32 master and two moments
    key = "actor.parallel_options.distributed_optimizer"
    settings = {**MEGATRON, **QWEN25_7B, "actor.dtype": "bfloat16"}
    share = 7_615_616_512 / 8
    for spread, ranks in ((True, 2), (False, 1)):
        items = memory_estimate(stated({**settings, key: spread}))
        found = {item.name.en: item.num_bytes for item in items}
        assert found["parameters"] == share * 2
        assert found["gradients in float32"] == share * 4
        assert found["optimizer states"] == share * 12 / ranks


def test_memory_is_not_guessed() -> None:
    assert memory_estimate({}) == []
    names = [item.name.en for item in memory_estimate(stated(FSDP))]
    assert names[0].startswith("input_ids") and len(names) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1, "x", (1, 2), True, None])
@pytest.mark.parametrize("name", sorted({**ALL, **SCHEDULE}))
def test_no_value_stops_the_derivation(name: str, value: ConfigLeaf) -> None:
    settings = {**ALL, **SCHEDULE, name: value}
    for framework in ("verl", "mindspeed_rl", "trl", "stack"):
        derived(settings, framework, rows=100)
        problems(settings, framework)
        learning_rates(stated(settings), framework)
    memory_estimate(stated(settings))


def test_real_configurations_derive_in_both_frameworks(corpus: Path) -> None:
    log = corpus / "verl_logs" / "dapo_gpu_v05_201steps_invalid_utf8.out"
    values = effective(RunData(discover([log])).configs, RunManifest()).values
    assert values["derived.warmup_steps"].value == 10
    assert values["derived.total_steps"].value == 200
    assert values["derived.kl_placement"].value == "none"
    yaml = corpus / "mindspeed_rl" / "grpo_qwen25_7b_A3.yaml"
    values = effective(RunData(discover([yaml])).configs, RunManifest()).values
    assert values["derived.learning_rate_course"].value == "1e-06 at every step"
    assert values["derived.sequences_per_iteration"].value == 256
