"""MindSpeed-RL's versions: what each does where a key is left out, and which one the keys tell."""

from __future__ import annotations

import ast
import csv
from pathlib import Path

import pytest

from align.config.diff import compare_configs
from align.config.keys import field_of, why_ignored
from align.config.normalise import effective
from align.config.schema import field_named
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    Provenance,
    ProvenanceKind,
    RawConfig,
)
from align.core.run import RunManifest
from align.core.text import Text
from align.frameworks.config_table import config_tables
from align.frameworks.mindspeed_rl_eras import BEFORE, ERAS, defaults_of, era_of
from dumps.store.discover import discover
from dumps.store.run_data import RunData

RECIPE: dict[str, ConfigLeaf] = {
    "megatron_training.global_batch_size": 32,
    "megatron_training.stage": "ray_grpo",
    "megatron_training.hidden_size": 64,
    "rl_config.n_samples_per_prompt": 8,
    "rl_config.mini_batch_size": 32,
    "generate_config.dtype": "bfloat16",
}
# Read off the configuration classes of each version by hand.
DEFAULTS: dict[str, tuple[ConfigLeaf, ...]] = {
    "actor.bf16": (False, False, True, True, True, True),
    "rl_config.entropy_coeff": (0.001, 0.0, 0.0, 0.0, 0.0, 0.0),
    "rl_config.kl_penalty": ("kl", *("low_var_kl",) * 5),
    "rl_config.use_integrated_worker": (False, *(True,) * 5),
    "generate_config.trust_remote_code": (*(True,) * 3, *(False,) * 3),
    "actor.norm_epsilon": (1e-5,) * 6,
    "actor.adam_beta2": (0.999,) * 6,
    "generate_config.sampling_config.temperature": (0.2,) * 6,
    "generate_config.sampling_config.top_k": (50,) * 6,
}
# First and last era that registers a key.
REGISTERED = {
    "rl_config.experience_count": (BEFORE, BEFORE),
    "rl_config.guarantee_order": ("2.0.0", "master"),
    "rl_config.use_remove_padding": ("2.1.0", "master"),
    "rl_config.td_status_log": ("2.1.0", "2.1.0"),
    "rl_config.clip_higher_enable": ("2.2.0", "master"),
    "rl_config.async_engine": ("2.2.0", "master"),
    "actor.use_deter_comp": (BEFORE, "2.2.0"),
    "actor.npu_deterministic": ("2.3.0", "master"),
    "actor.moe_intermediate_size": (BEFORE, "2.2.0"),
    "actor.moe_ffn_hidden_size": ("2.3.0", "master"),
    "actor.lora_r": ("master", "master"),
    "rl_config.multi_turn_enable": ("master", "master"),
}


def resolve(
    more: dict[str, ConfigLeaf] | None = None, version: str | None = None
) -> EffectiveConfig:
    leaves = {
        key: ConfigValue(key, value, Provenance(ProvenanceKind.FILE, "grpo.yaml", 1))
        for key, value in (RECIPE | (more or {})).items()
    }
    raw = RawConfig("grpo.yaml", "mindspeed_rl_yaml", "mindspeed_rl", leaves)
    return effective([raw], RunManifest(framework_version=version))


def values_of(config: EffectiveConfig) -> dict[str, ConfigLeaf]:
    return {name: value.value for name, value in config.values.items()}


@pytest.mark.parametrize("key", DEFAULTS)
def test_each_version_has_its_own_defaults(key: str) -> None:
    assert tuple(defaults_of(era)[key] for era in ERAS) == DEFAULTS[key]


@pytest.mark.parametrize("key", REGISTERED)
def test_a_key_exists_from_its_first_version_to_its_last(key: str) -> None:
    first, last = (ERAS.index(era) for era in REGISTERED[key])
    assert [key in defaults_of(era, with_unset=True) for era in ERAS] == [
        first <= index <= last for index in range(len(ERAS))
    ]


def test_the_defaults_of_master_are_those_of_the_facts(shared: Path) -> None:
    known = defaults_of("master")
    checked = 0
    for row in facts(shared / "facts" / "msrl_defaults.tsv"):
        section = row["section"].split(" ")[0].split("/")[0]
        section = {"megatron_training": "actor"}.get(section, section)
        key = f"{section}.{row['key']}"
        if key not in known or row["key"] == "pad_to_multiple_of":  # computed from TP and CP
            continue
        value = ast.literal_eval(row["default"])
        assert known[key] == (tuple(value) if isinstance(value, list) else value), key
        checked += 1
    assert checked > 230


@pytest.mark.parametrize(
    ("version", "era"),
    [
        ("2.1.0", "2.1.0"),
        ("v2.3.0", "2.3.0"),
        ("2.2", "2.2.0"),
        ("master", "master"),
        ("2025-04-20", BEFORE),
        ("2025-05-14", BEFORE),
        ("2025-05-15", None),  # the day mini_batch_size changed
        ("9.9", None),
        (None, None),
    ],
)
def test_a_stated_version_belongs_to_an_era(version: str | None, era: str | None) -> None:
    assert era_of(version) == era


@pytest.mark.parametrize(
    ("key", "assumed"),
    [
        ("rl_config.experience_count", BEFORE),
        ("rl_config.td_status_log", "2.1.0"),
        ("megatron_training.use_deter_comp", "2.2.0"),
        ("megatron_training.npu_deterministic", "2.3.0"),
        ("rl_config.clip_higher_enable", "2.3.0"),
        ("rl_config.data_strategy", "master"),
        ("megatron_training.lora_r", "master"),
    ],
)
def test_the_keys_tell_the_version_and_the_note_says_that_it_is_assumed(
    key: str, assumed: str
) -> None:
    config = resolve({key: 1})
    assert config.framework_version == assumed
    notes = [note.en for note in config.notes if note.en.startswith("version ")]
    assert len(notes) == 1 and notes[0].startswith(f"version {assumed} is assumed")


def test_a_stated_version_is_not_guessed() -> None:
    config = resolve({"rl_config.experience_count": 2}, "2.3.0")
    assert config.framework_version == "2.3.0"
    assert not any(note.en.startswith("version ") for note in config.notes)


def test_keys_that_the_stated_version_does_not_have_are_noted() -> None:
    stated: dict[str, ConfigLeaf] = {"rl_config.clip_higher_enable": True}
    doubt = "its keys are those of version 2.3.0, 2.2.0, master, not of 2.1.0, which the run states"
    assert doubt in [note.en for note in resolve(stated, "2.1.0").notes]
    for version in ("2.2.0", "v2.3.0", "master", "9.9"):
        assert not any("its keys are" in note.en for note in resolve(stated, version).notes)
    assert not any("its keys are" in note.en for note in resolve(version="2025-04").notes)


def test_only_a_value_that_another_fitting_version_would_change_carries_the_assumption() -> None:
    config = resolve({"rl_config.guarantee_order": True})
    assert config.framework_version == "2.3.0"
    assert config.values["rollout.temperature"].assumption is None  # 0.2 in every version
    order = config.values["data.sampler"].assumption
    assert order is None  # torch's sampler since 2.0.0, and guarantee_order rules out what is older
    for name in ("actor.dtype", "rollout.prompt_form"):  # bf16 off in 2.0.0, text on master
        assert "version 2.3.0 is assumed" in str(config.values[name].assumption), name


def test_an_assumed_version_is_in_the_finding_that_depends_on_it() -> None:
    found = compare_configs(resolve(version="master"), resolve()).findings
    finding = next(f for f in found if f.id == "config.rollout.prompt_form")
    assert "Assumed: version 2.3.0 is assumed" in finding.why.en
    assert finding.reference == "text without special tokens"


def test_the_mini_batch_size_is_in_sequences_before_2025_05_15() -> None:
    assert values_of(resolve(version="2025-04"))["actor.mini_batch_size"] == 4
    for era in ERAS[1:]:
        assert values_of(resolve(version=era))["actor.mini_batch_size"] == 32


def test_the_loss_of_before_2025_05_15_reads_neither_entropy_nor_estimator() -> None:
    stated: dict[str, ConfigLeaf] = {"rl_config.entropy_coeff": 0.5, "rl_config.kl_penalty": "kl"}
    old, new = resolve(stated, "2025-04"), resolve(stated, "2.3.0")
    assert values_of(old)["loss.entropy_coef"] == 0.0
    assert values_of(old)["loss.kl_type"] == "low_var_kl"
    assert "rl_config.entropy_coeff" in old.ignored
    assert (values_of(new)["loss.entropy_coef"], values_of(new)["loss.kl_type"]) == (0.5, "kl")


def test_one_budget_of_tokens_counts_in_2_1_0_and_is_dead_from_2_2_0() -> None:
    stated: dict[str, ConfigLeaf] = {
        "rl_config.use_dynamic_bsz": True,
        "rl_config.max_packing_token_size": 9000,
    }
    assert values_of(resolve(stated, "2.1.0"))["actor.max_tokens_per_micro_batch"] == 9000
    assert values_of(resolve(stated, "2.2.0"))["actor.max_tokens_per_micro_batch"] == 4096


@pytest.mark.parametrize(
    ("version", "sampler", "length_filter", "std_eps", "prompt"),
    [
        ("2025-04", "numpy", "no filter", 1e-8, "token ids"),
        ("2.0.0", "torch", "length < max_prompt_length", 1e-6, "token ids"),
        ("2.3.0", "torch", "length < max_prompt_length", 1e-6, "token ids"),
        ("master", "torch", "length < max_prompt_length", 1e-6, "text without special tokens"),
    ],
)
def test_what_the_code_does_depends_on_the_version(
    version: str, sampler: str, length_filter: str, std_eps: float, prompt: str
) -> None:
    values = values_of(resolve(version=version))
    assert values["data.sampler"] == sampler
    assert values["data.length_filter"] == length_filter
    assert values["advantage.std_eps"] == std_eps
    assert values["rollout.prompt_form"] == prompt


def test_the_async_engine_of_master_gets_token_ids() -> None:
    values = values_of(resolve({"rl_config.async_engine": True}, "master"))
    assert values["rollout.prompt_form"] == "token ids"


def test_two_eras_of_one_recipe_differ_only_where_the_code_does() -> None:
    stated: dict[str, ConfigLeaf] = {
        "megatron_training.bf16": True,
        "rl_config.guarantee_order": True,
    }
    diff = compare_configs(resolve(stated, "2.0.0"), resolve(stated, "2.3.0"))
    assert [finding.id for finding in diff.findings] == []
    diff = compare_configs(resolve(stated, "2.3.0"), resolve(stated, "master"))
    assert {finding.id for finding in diff.findings} == {"config.rollout.prompt_form"}


def test_old_and_new_names_of_one_argument_are_one_field() -> None:
    renamed = {
        "n_group": "moe_router_num_groups",
        "topk_group": "moe_router_group_topk",
        "routed_scaling_factor": "moe_router_topk_scaling_factor",
        "qk_rope_head_dim": "qk_pos_emb_head_dim",
        "qk_nope_head_dim": "qk_head_dim",
        "rope_scaling_beta_fast": "beta_fast",
        "moe_intermediate_size": "moe_ffn_hidden_size",
        "use_deter_comp": "npu_deterministic",
    }
    tables = config_tables("mindspeed_rl")
    assert tables is not None
    for old, new in renamed.items():
        assert field_of(tables, f"actor.{old}") == field_of(tables, f"actor.{new}") is not None


def test_the_real_old_configuration_is_read_as_one(corpus: Path) -> None:
    data = RunData(discover([corpus / "mindspeed_rl" / "old_2025-05"]))
    config = effective(data.configs, RunManifest())
    assert config.framework_version == BEFORE
    values = values_of(config)
    assert values["actor.mini_batch_size"] == 2  # 4 sequences, 2 responses per prompt
    assert values["data.guarantee_order"] is False
    assert config.unmatched == ()


def test_the_real_new_configurations_are_of_2_1_0_or_later(corpus: Path) -> None:
    for path in sorted((corpus / "mindspeed_rl").glob("*.yaml")):
        config = effective(RunData(discover([path])).configs, RunManifest())
        assert config.framework_version in ("2.2.0", "2.3.0", "master"), path


def facts(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


SECTIONS = {
    "megatron_training": ("actor",),
    "rl_config": ("rl_config",),
    "generate_config": ("generate_config",),
    "profiler_config.<role>": ("profiler_config.actor",),
    "msprobe_config": ("msprobe_config",),
    "configs": ("datasets",),
}


def test_each_of_the_377_keys_is_a_field_or_harmless_with_a_reason(shared: Path) -> None:
    tables = config_tables("mindspeed_rl")
    assert tables is not None
    in_formulas = {key for formula in tables.formulas for key in formula.keys}
    rows = facts(shared / "facts" / "msrl_defaults.tsv")
    assert len(rows) == 377
    fields, harmless, formulas = [], [], []
    for row in rows:
        (section,) = SECTIONS[row["section"].split(" ")[0].split("/")[0]]
        key = f"{section}.{row['key']}"
        name = field_of(tables, key)
        if name is not None:
            field_named(name)
            fields.append(key)
        elif key in in_formulas:
            formulas.append(key)
        else:
            reason = why_ignored(tables, key)
            assert isinstance(reason, Text) and reason.en and reason.zh, key
            harmless.append(key)
    assert len(fields) + len(harmless) + len(formulas) == 377
    assert len(fields) > 180


# Rows of the mapping about code, not keys, and the field in which each shows; every row that names
# keys is walked by test_config_schema.
SHOWN_IN = {
    "tokenizer eos/pad (HF tokenizer + prompt_type.replace_eos)": "data.eos_source",
    "rl_config.mini_batch_size / DP": "actor.mini_batch_size",
    "(adam_eps not registered -> Megatron 1e-8)": "actor.adam_eps",
    "(std normalisation fixed)": "advantage.normalize_by_std",
    "(no dual clip)": "loss.dual_clip",
    "critic_config.*": "critic.lr",
    "megatron_training.model + configs/model/*.yaml": "model.hidden_size",
}


def test_the_rows_of_the_mapping_that_are_about_code_show_in_a_field(shared: Path) -> None:
    rows = facts(shared / "facts" / "msrl_verl_mapping.tsv")
    assert len(rows) == 114
    assert set(SHOWN_IN) <= {row["msrl_key"] for row in rows}
    known = resolve({"critic_config.lr": 1e-5}, "2.3.0").values
    assert [field for field in SHOWN_IN.values() if field not in known] == []
