"""Every configuration case of the field reports is found, with its consequence; its twin is not.

Expected severities and words come from the reports themselves: the two seed reports ("seed 000",
"seed 001"), the collected field reports ("report N"), and the defaults read from MindSpeed-RL's
source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from align.config.case import Example
from align.config.diff import compare_configs, judge
from align.config.normalise import effective
from align.config.rules import rules
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    Provenance,
    ProvenanceKind,
    RawConfig,
)
from align.core.finding import Finding, Severity, Strength
from align.core.run import RunManifest
from align.core.rung import Rung

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
CROSS, NPU = ("verl", "mindspeed_rl"), ("mindspeed_rl", "mindspeed_rl")


@dataclass(frozen=True)
class Entry:
    """One case of a report: a pair, what must be said of it, and a pair that is right."""

    report: str
    pair: Example
    severity: Severity
    words: tuple[str, ...]  # in `why`
    twin: Example | None = None  # without one, the pair with the reference's value on both sides
    fix: str = ""  # in `fix`

    @property
    def clean(self) -> Example:
        return self.twin or replace(
            self.pair, values=(self.pair.values[0],) * 2, candidate=self.pair.reference
        )


_OFF_POLICY = {"data.train_batch_size": 2048, "actor.ppo_epochs": 1, "rollout.n": 8}
_ON_POLICY = {
    "data.train_batch_size": 32,
    "actor.mini_batch_size": 32,
    "actor.ppo_epochs": 1,
    "actor.micro_batch_size": 2,
}
_LENGTHS = {"data.max_prompt_length": 2048, "data.max_response_length": 2048}
_MODES = ("processed_logprobs", "raw_logprobs")
_PLAIN = {"rollout.temperature": 1.0, "rollout.top_p": 1, "rollout.top_k": -1}

ENTRIES = (
    # seed 000, the table of keys that are easily set wrongly
    Entry(
        "seed 000: lr_warmup_fraction",
        Example("actor.lr_warmup_fraction", (0.1, 0.0), frameworks=CROSS),
        ERROR,
        ("lr_warmup_steps_ratio", "full learning rate"),
    ),
    Entry(
        "seed 000: mini_batch_size times n_sample",
        Example("actor.mini_batch_size", (256, 2048), both=_OFF_POLICY, frameworks=CROSS),
        ERROR,
        ("n = 8", "2025-05-15", "8 in the reference (off-policy), 1 in the candidate (on-policy)"),
        fix="number of prompts",
    ),
    Entry(
        "seed 000: seq_len against prompt + response",
        Example("data.sequence_length", (2048, 1024), both=_LENGTHS, frameworks=NPU),
        ERROR,
        ("max_prompt_length + max_response_length", "below max_prompt_length"),
        Example("data.sequence_length", (2048, 4096), both=_LENGTHS, frameworks=NPU),
        fix="at most max_model_len",
    ),
    Entry(
        "seed 000: seq_len across frameworks",
        Example("data.prompt_cut_length", (2048, 1024), both=_LENGTHS, frameworks=CROSS),
        ERROR,
        ("max_prompt_length + max_response_length",),
    ),
    Entry(
        "seed 000: seq_len of the engine",
        Example("rollout.max_model_len", (None, 3072), both=_LENGTHS, frameworks=CROSS),
        ERROR,
        ("max_prompt_length + max_response_length",),
        Example("rollout.max_model_len", (None, 4096), both=_LENGTHS, frameworks=CROSS),
    ),
    Entry(
        "seed 000: train_iters against epochs, and the shuffle",
        Example("trainer.total_steps", (None, 500), frameworks=CROSS),
        WARNING,
        ("permutation", "row order"),
        Example(
            "trainer.total_steps",
            (None, 500),
            both={
                "data.shuffle": False,
                "actor.lr_schedule": "constant",
                "actor.lr_warmup_fraction": 0,
            },
            frameworks=CROSS,
        ),
        fix="the other side's log",
    ),
    Entry(
        "seed 000: rms_norm_eps, and the collapse after 1500 steps",
        Example("model.rms_norm_eps", (1e-7, 1e-6), frameworks=CROSS),
        ERROR,
        (
            "1,500 steps",
            "reward",
            "7B 1e-6, Instruct 1e-6; 32B 1e-5, Instruct 1e-6",
            "none has 1e-7",
        ),
        fix="config.json",
    ),
    Entry(
        "seed 000: rms_norm_eps of a named model",
        Example(
            "model.rms_norm_eps",
            (1e-6, 1e-5),
            both={"model.name": "/npu/Qwen2.5-32B-Instruct"},
            frameworks=CROSS,
        ),
        ERROR,
        ("Qwen2.5-32B-Instruct has 1e-6",),
    ),
    Entry(
        "seed 000: tokenizer eos, and the collapse after 500 steps",
        Example("model.eos_token_id", ((151643,), (151645,)), frameworks=CROSS),
        WARNING,  # the tokenizer rung, which reads every source of it, calls it an error
        ("after 500 steps", "response length fell to 0", "padding"),
        Example("model.eos_token_id", ((151645,), (151645,)), frameworks=CROSS),
        fix="same tokenizer folder",
    ),
    Entry(
        "seed 000: tokenizer pad",
        Example("model.pad_token_id", (151643, 151645), both={"model.eos_token_id": (151645,)}),
        INFO,
        ("padding is the end token", "does not learn to stop"),
    ),
    # seed 001, the table of key problems
    Entry(
        "seed 001: interleave of input and output batch",
        Example(
            "rollout.interleave.input", (True, False), both={"rollout.interleave.output": True}
        ),
        ERROR,
        ("the reward fell to 0", "do not agree"),
        fix="HCCL",
    ),
    Entry(
        "seed 001: log_prob token budget",
        Example("old_log_prob.max_tokens", (32768, 16384)),
        INFO,
        ("out of memory", "16k"),
    ),
    Entry(
        "seed 001: ref log_prob token budget",
        Example("ref.max_tokens", (32768, 16384)),
        INFO,
        ("out of memory",),
    ),
    # the collected field reports, sections A to C
    Entry(
        "report 1: raw weight conversion",
        Example("actor.parallel_options.use_mbridge", (True, False)),
        WARNING,
        ("from step 0 on", "vime#274"),
    ),
    Entry(
        "report 3: fused rotary embedding",
        Example("actor.precision_options.apply_rope_fusion", (False, True)),
        WARNING,
        ("reward stayed equal",),
        fix="not the reward",
    ),
    Entry(
        "report 3: fused SwiGLU",
        Example("model.fused_swiglu", (False, True)),
        WARNING,
        ("until the run crashed",),
    ),
    Entry(
        "report 4: expert parallel size",
        Example("actor.expert_parallel_size", (1, 8), both={"model.num_experts": 128}),
        WARNING,
        ("experts", "alone"),
    ),
    Entry(
        "report 6: log_prob micro-batch",
        Example("old_log_prob.micro_batch_size", (2, 4), both=_ON_POLICY),
        WARNING,
        ("pg_clipfrac",),
    ),
    Entry(
        "report 9: remove_padding",
        Example("model.remove_padding", (True, False)),
        WARNING,
        ("verl#1381", "rounding"),
    ),
    Entry(
        "report 11: raw log_probs at a temperature",
        Example("rollout.logprobs_mode", _MODES, both={**_PLAIN, "rollout.temperature": 0.6}),
        WARNING,
        ("slope 1/T",),
        Example("rollout.logprobs_mode", _MODES, both=_PLAIN),
    ),
    Entry(
        "report 12: temperature",
        Example("rollout.temperature", (1.0, 0.6)),
        ERROR,
        ("slope 1/T",),
    ),
    Entry(
        "report 15: data and expert parallel engine",
        Example("rollout.data_parallel_size", (1, 4), both={"rollout.expert_parallel_size": 8}),
        WARNING,
        ("repeat themselves",),
    ),
    Entry(
        "report 16: padding is the end token",
        Example("model.pad_token_id", (0, 2), both={"model.eos_token_id": (2,)}),
        INFO,
        ("lost from the loss",),
    ),
    Entry(
        "report 18: the stop set lacks a token",
        Example("model.eos_token_id", ((1, 50, 106), (1,))),
        WARNING,
        ("end at another token", "length limit"),
        Example("model.eos_token_id", ((1,), (1,))),
    ),
    Entry(
        "report 25: default system prompt",
        Example("data.prompt_template", ("qwen", "empty"), frameworks=NPU),
        ERROR,
        ("system prompt",),
    ),
    Entry(
        "report 26: enable_thinking",
        Example("data.chat_template.enable_thinking", (True, False)),
        ERROR,
        ("<think></think>",),
    ),
    Entry(
        "report 28: decay steps without the warmup",
        Example("actor.lr_options.decay_steps", (220, 198), both={"actor.lr_warmup_steps": 22}),
        ERROR,
        ("22 steps before the end",),
        fix="do not subtract",
    ),
    Entry(
        "report 30: updates per batch",
        Example("actor.ppo_epochs", (1, 2), both=_ON_POLICY),
        ERROR,
        ("1 in the reference (on-policy), 2 in the candidate (off-policy)",),
    ),
    Entry(
        "report 31: mini-batch in responses",
        Example("actor.mini_batch_size", (256, 1280), both={"rollout.n": 5}),
        ERROR,
        ("n = 5",),
    ),
    Entry(
        "report 32: aggregation",
        Example("loss.aggregation", ("token-mean", "seq-mean-token-mean")),
        ERROR,
        ("10 and 1,000 tokens",),
    ),
    Entry(
        "report 32: micro-batch mean",
        Example("actor.micro_batch_size", (8, 4), frameworks=NPU),
        WARNING,
        ("within each micro-batch",),
    ),
    Entry(
        "report 32: calculate_per_token_loss",
        Example("loss.options.calculate_per_token_loss", (True, False)),
        ERROR,
        ("short responses weigh more",),
    ),
    Entry(
        "report 33: KL-Cov picks by micro-batch",
        Example("actor.micro_batch_size", (8, 4), both={"loss.mode": "kl_cov"}),
        ERROR,
        ("which tokens are picked",),
    ),
    Entry(
        "report 34: bfloat16 weights in the optimizer",
        Example("actor.master_dtype", ("float32", "bfloat16"), both={"actor.lr": 1e-6}),
        ERROR,
        ("0.0005", "stand still"),  # 512 × 1e-6, half a unit of 8 significant bits
    ),
    Entry(
        "report 35: epsilon of another framework's default",
        Example("model.rms_norm_eps", (1e-6, 1e-5), frameworks=CROSS, unset=(False, True)),
        ERROR,
        ("not set in the candidate", "the framework's default"),
    ),
    Entry(
        "report 37: tied embeddings",
        Example("model.tie_word_embeddings", (True, False)),
        ERROR,
        ("lm_head", "text_config"),
    ),
    Entry(
        "report 38: length of the schedule",
        Example("trainer.total_steps", (100, 200), both={"actor.lr_schedule": "cosine"}),
        ERROR,
        ("learning rate",),
        Example(
            "trainer.total_steps",
            (100, 200),
            both={"actor.lr_schedule": "constant", "actor.lr_warmup_fraction": 0},
        ),
    ),
    Entry(
        "report 41: another training engine",
        Example("actor.strategy", ("fsdp", "megatron")),
        INFO,
        ("3 in verl#4710", "normalisation of the loss"),
    ),
    Entry(
        "report 60: prefix caching under TorchAir",
        Example(
            "rollout.prefix_caching",
            (False, True),
            both={"rollout.engine_options.torchair_graph": True},
        ),
        WARNING,
        ("guessing",),
        Example(
            "rollout.prefix_caching",
            (False, True),
            both={"rollout.engine_options.torchair_graph": False},
        ),
    ),
    Entry(
        "report 62: cascade attention",
        Example("rollout.engine_options.kwargs.vllm.disable_cascade_attn", (True, False)),
        WARNING,
        ("0.005 is normal",),
    ),
    Entry(
        "report 64: trainer implementation",
        Example("trainer.implementation", (False, True)),
        WARNING,
        ("decided an outcome",),
    ),
    Entry(
        "report 46: overlap of communication",
        Example("actor.parallel_options.overlap_param_gather", (False, True)),
        WARNING,
        ("NaN",),
    ),
)


def _findings(example: Example) -> tuple[Finding, ...]:
    case = example.case()
    return compare_configs(case.reference_config, case.candidate_config).findings


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.report)
def test_every_case_of_the_reports_is_named_first_with_its_consequence(entry: Entry) -> None:
    finding = _findings(entry.pair)[0]
    assert finding.id == f"config.{entry.pair.field}"
    assert finding.severity is entry.severity
    for word in entry.words:
        assert word in finding.why.en
    assert entry.fix in finding.fix.en
    assert max(finding.why.zh) >= "一" and finding.fix.zh


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.report)
def test_the_clean_twin_of_every_case_raises_nothing(entry: Entry) -> None:
    assert [f.id for f in _findings(entry.clean) if f.severity is not INFO] == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.report)
def test_a_case_is_found_with_the_two_sides_exchanged(entry: Entry) -> None:
    pair = entry.pair
    turned = replace(
        pair,
        values=pair.values[::-1],
        reference=pair.candidate,
        candidate=pair.reference,
        frameworks=pair.frameworks[::-1],
        unset=pair.unset[::-1],
    )
    finding = _findings(turned)[0]
    assert (finding.id, finding.severity) == (f"config.{pair.field}", entry.severity)


def test_every_rule_has_a_fix_or_calls_a_difference_harmless_or_says_how_it_acts() -> None:
    for rule in rules():
        for example in rule.FIRES:
            finding = judge(example.case())
            assert finding.fix.en and finding.fix.zh, rule.__name__
            assert finding.why.en and finding.why.zh, rule.__name__


# -- through the readers' records, as a run's files state them ------------------------------------


def _config(
    framework: str, values: Mapping[str, ConfigLeaf], **more: ConfigLeaf
) -> EffectiveConfig:
    """Resolve a training configuration, with a config.json of the model where ``more`` has any."""
    configs = [_raw("train.yaml", "yaml", framework, values)]
    if more:
        configs.append(_raw("config.json", "hf_config", None, more))
    return effective(
        configs, RunManifest(framework=framework, framework_version=_VERSION[framework])
    )


_VERSION = {"verl": "0.9.1", "mindspeed_rl": "2.3.0"}


def _raw(
    source: str, form: str, framework: str | None, values: Mapping[str, ConfigLeaf]
) -> RawConfig:
    place = Provenance(ProvenanceKind.FILE, source, 1)
    kind = ProvenanceKind.MODEL_CONFIG if form == "hf_config" else ProvenanceKind.FILE
    place = replace(place, kind=kind)
    return RawConfig(
        source, form, framework, {k: ConfigValue(k, v, place) for k, v in values.items()}
    )


_SANE: dict[str, ConfigLeaf] = {
    "megatron_training.stage": "ray_grpo",
    "megatron_training.hidden_size": 2048,
    "megatron_training.num_experts": 128,
    "megatron_training.attention_dropout": 0.0,
    "megatron_training.hidden_dropout": 0.0,
    "megatron_training.norm_epsilon": 1e-6,
    "megatron_training.moe_router_load_balancing_type": "aux_loss",
    "megatron_training.moe_aux_loss_coeff": 0.0,
    "actor_config.lr_decay_style": "constant",
    "actor_config.adam_beta2": 0.95,
    "rl_config.guarantee_order": True,
    "rl_config.init_kl_coef": 0.001,
    "generate_config.sampling_config.temperature": 1.0,
    "generate_config.sampling_config.top_k": -1,
    "generate_config.sampling_config.max_tokens": 2048,
}
# Key, field, default of MindSpeed-RL 2.3.0's configuration classes, and what a report must say.
DANGEROUS = (
    ("megatron_training.attention_dropout", "model.attention_dropout", 0.1, "random"),
    ("megatron_training.hidden_dropout", "model.hidden_dropout", 0.1, "random"),
    ("megatron_training.norm_epsilon", "model.rms_norm_eps", 1e-5, "1,500 steps"),
    ("megatron_training.moe_aux_loss_coeff", "model.moe_aux_loss_coef", 0.001, "balancing"),
    ("actor_config.lr_decay_style", "actor.lr_schedule", "linear", "to 0"),
    ("actor_config.adam_beta2", "actor.adam_beta2", 0.999, "1,000 updates"),
    ("rl_config.guarantee_order", "data.guarantee_order", False, "unseeded"),
    ("rl_config.init_kl_coef", "loss.kl_coef", 0.01, "ten times"),
    ("generate_config.sampling_config.temperature", "rollout.temperature", 0.2, "advantages"),
    ("generate_config.sampling_config.top_k", "rollout.top_k", 50, "cuts"),
    ("generate_config.sampling_config.max_tokens", "data.max_response_length", 128, "cut"),
)


@pytest.mark.parametrize(
    ("key", "field", "default", "word"), DANGEROUS, ids=[row[1] for row in DANGEROUS]
)
def test_a_dangerous_default_is_said_to_be_one(
    key: str, field: str, default: ConfigLeaf, word: str
) -> None:
    left_out = {k: v for k, v in _SANE.items() if k != key}
    sides = _config("mindspeed_rl", _SANE), _config("mindspeed_rl", left_out)
    found = [f for f in compare_configs(*sides).findings if f.severity is not INFO]
    assert [f.id for f in found] == [f"config.{field}"]
    assert found[0].candidate == default
    assert "not set in the candidate; the framework's default stands" in found[0].why.en
    assert word in found[0].why.en
    written = _config("mindspeed_rl", {**_SANE, key: default})
    assert [f for f in compare_configs(written, sides[1]).findings if f.severity is not INFO] == []


def test_the_wrong_tokenizer_folder_is_found_from_config_json_on_both_sides() -> None:
    reference = _config("verl", {"algorithm.adv_estimator": "grpo"}, eos_token_id=151643)
    candidate = _config("mindspeed_rl", _SANE, eos_token_id=151645)
    finding = next(
        f for f in compare_configs(reference, candidate).findings if "eos_token_id" in f.id
    )
    assert finding.severity is WARNING and "after 500 steps" in finding.why.en
    assert finding.mechanism is not None and finding.mechanism.acts_on is Rung.ROLLOUT
    twin = _config("mindspeed_rl", _SANE, eos_token_id=151643)
    assert not any("eos" in f.id for f in compare_configs(reference, twin).findings)


def test_a_changed_trainer_that_interleaves_one_batch_alone_is_found() -> None:
    keys = [f"actor_rollout_ref.rollout.{batch}_interleave" for batch in ("input", "output")]
    both = _config("verl", dict.fromkeys(keys, True))
    one = _config("verl", {keys[0]: False, keys[1]: True})
    finding = compare_configs(both, one).findings[0]
    assert finding.severity is ERROR and "the reward fell to 0" in finding.why.en
    neither = compare_configs(both, _config("verl", dict.fromkeys(keys, False))).findings
    assert not any("the reward fell to 0" in f.why.en for f in neither)


def test_a_fusion_override_is_rounding_and_no_other_architecture() -> None:
    key = "actor_rollout_ref.actor.megatron.override_transformer_config.apply_rope_fusion"
    base: dict[str, ConfigLeaf] = {"actor_rollout_ref.actor.strategy": "megatron"}
    sides = [_config("verl", {**base, key: value}) for value in (False, True)]
    finding = compare_configs(*sides).findings[0]
    assert finding.id == "config.actor.precision_options.apply_rope_fusion"
    assert finding.mechanism is not None
    assert finding.mechanism.strength is Strength.NUMERIC
    assert "training/rollout_probs_diff*" in finding.mechanism.signature
    assert "architecture" not in finding.why.en
