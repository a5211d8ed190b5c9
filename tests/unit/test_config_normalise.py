"""Effective values: what counts, where it comes from, and what is only assumed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.config.comparable import canonical, equal
from align.config.normalise import effective
from align.config.schema import ValueKind
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    Provenance,
    ProvenanceKind,
    RawConfig,
)
from align.core.run import RunManifest
from align.frameworks.config_table import config_tables
from align.ladder import summarise
from dumps.store.discover import discover
from dumps.store.run_data import RunData

_TABLES = config_tables("verl")
assert _TABLES is not None
VERL_KEYS = sorted(_TABLES.keys)
MINDSPEED_RL = {
    "megatron_training.model": "m",
    "megatron_training.global_batch_size": 32,
    "megatron_training.stage": "ray_grpo",
    "megatron_training.bf16": True,
    "rl_config.n_samples_per_prompt": 8,
    "rl_config.mini_batch_size": 32,
    "generate_config.dtype": "bfloat16",
    "model.m.hidden_size": 64,
    "model.m.num_attention_heads": 4,
    "model.m.num_layers": 2,
}
VERL_PART = {"actor_rollout_ref.rollout.temperature": 0.6}
_OF = "default of MindSpeed-RL "
_OF_2_3_0 = f"{_OF}2.3.0"


def raw(values, kind=ProvenanceKind.FILE, framework="verl", **more) -> RawConfig:
    leaves = {
        key: ConfigValue(
            key, value, Provenance(kind, f"{kind.value}.yaml", line, f"{key}: {value}")
        )
        for line, (key, value) in enumerate(values.items(), 1)
    }
    return RawConfig("test.yaml", "yaml_config", framework, leaves, **more)


def resolve(values, version=None, framework="verl", **more) -> EffectiveConfig:
    config = raw(values, framework=framework, **more)
    return effective([config], RunManifest(framework=framework, framework_version=version))


def values_of(config: EffectiveConfig) -> dict:
    return {name: value.value for name, value in config.values.items()}


def test_the_stronger_file_counts_whatever_the_order() -> None:
    key = "actor_rollout_ref.rollout.temperature"
    printed = raw({key: 1.0}, ProvenanceKind.PRINTED)
    override = raw({key: 0.7}, ProvenanceKind.OVERRIDE)
    for files in ([printed, override], [override, printed]):
        value = effective(files, RunManifest()).values["rollout.temperature"]
        assert value.value == 1.0
        assert value.raw.provenance.source == "printed.yaml"


def test_two_equally_strong_files_that_disagree_are_reported() -> None:
    key = "actor_rollout_ref.rollout.temperature"
    config = effective([raw({key: 1.0}), raw({key: 0.7})], RunManifest())
    assert config.values["rollout.temperature"].value == 1.0
    assert any("two values" in note.en and key in note.en for note in config.notes)


def test_an_unresolved_interpolation_is_unknown() -> None:
    config = resolve({"actor_rollout_ref.rollout.n": "${oc.env:N}", "data.shuffle": True})
    assert "rollout.n" not in config.values


def test_a_partial_configuration_takes_defaults_and_says_which_version_is_assumed() -> None:
    config = resolve({"actor_rollout_ref.rollout.temperature": 0.6})
    cap = config.values["rollout.max_num_seqs"]
    assert cap.value == 256
    assert cap.raw.provenance.kind is ProvenanceKind.DEFAULT
    assert "0.9" in str(cap.assumption)


def test_defaults_are_those_of_the_version() -> None:
    stated = {"actor_rollout_ref.rollout.temperature": 0.6}
    assert values_of(resolve(stated, "0.5.0"))["data.seed"] == 1
    assert values_of(resolve(stated, "0.9.1"))["data.seed"] == 67280421310721
    assert values_of(resolve(stated, "0.6.1"))["model.remove_padding"] is False
    assert values_of(resolve(stated, "0.7.0"))["model.remove_padding"] is True
    assert values_of(resolve(stated, "0.8.0"))["rollout.calculate_log_probs"] is False
    assert values_of(resolve(stated, "0.9.0"))["rollout.calculate_log_probs"] is True


@pytest.mark.parametrize(
    ("framework", "stated", "field", "version", "source", "assumption"),
    [
        ("verl", VERL_PART, "actor.lr", "0.9.1", "default of verl 0.9.1", None),
        ("verl", VERL_PART, "actor.lr", "0.5.0", "default of verl 0.5.0", None),
        ("verl", VERL_PART, "actor.lr", None, "default of verl 0.9.1", None),  # never another
        ("verl", VERL_PART, "data.seed", None, "default of verl 0.9.1", "does not state"),
        ("verl", VERL_PART, "data.seed", "0.12.0", "default of verl 0.9.1", "states 0.12.0"),
        ("mindspeed_rl", MINDSPEED_RL, "rollout.top_k", "2.3.0", _OF_2_3_0, None),
        ("mindspeed_rl", MINDSPEED_RL, "rollout.top_k", "master", f"{_OF}master", None),
        ("mindspeed_rl", MINDSPEED_RL, "rollout.top_k", "2.1.0", f"{_OF}2.1.0", None),
        ("mindspeed_rl", MINDSPEED_RL, "rollout.top_k", "1.0.0", _OF_2_3_0, "states 1.0.0"),
        ("mindspeed_rl", MINDSPEED_RL, "rollout.top_k", None, _OF_2_3_0, None),
    ],
)
def test_a_default_names_the_version_its_table_is_of_and_says_when_the_run_states_another(
    framework: str,
    stated: dict[str, ConfigLeaf],
    field: str,
    version: str | None,
    source: str,
    assumption: str | None,
) -> None:
    value = resolve(stated, version, framework=framework).values[field]
    assert value.raw.provenance.source == source
    assert (value.assumption is None) == (assumption is None)
    assert assumption is None or assumption in str(value.assumption)


def test_every_assumption_note_and_reason_is_in_both_languages(corpus: Path) -> None:
    cut = resolve(VERL_PART | {"data.seed": "${oc.env:S}"}, truncated_at="data.seed")
    configs = [cut, resolve(VERL_PART), resolve(MINDSPEED_RL, framework="mindspeed_rl")]
    for folder in (corpus / "verl_configs" / "grpo_v06", corpus / "mindspeed_rl"):
        configs.append(effective(RunData(discover([folder])).configs, RunManifest()))
    texts = [text for c in configs for text in (*c.notes, *c.ignored.values())]
    texts += [v.assumption for c in configs for v in c.values.values() if v.assumption]
    assert len(texts) > 50
    for text in texts:
        assert text.en.isascii() or "…" in text.en, text
        assert re.search("[一-鿿]", text.zh), text


def test_a_version_guessed_from_the_keys_is_never_shown_as_the_runs_version(corpus: Path) -> None:
    data = RunData(discover([corpus / "verl_configs" / "grpo_v07"]))
    assert effective(data.configs, RunManifest()).framework_version == "0.7.0"
    assert data.framework == "verl" and data.framework_version is None
    assert summarise(data).framework_version is None


def test_a_truncated_configuration_takes_no_defaults() -> None:
    config = resolve({"data.train_batch_size": 8}, truncated_at="data.train_batch_size")
    assert set(values_of(config)) == {"data.train_batch_size"}
    assert any("ends at key data.train_batch_size" in note.en for note in config.notes)


def test_gradient_clipping_is_read_from_the_key_of_the_version() -> None:
    keys = {
        "actor_rollout_ref.actor.grad_clip": 0.5,
        "actor_rollout_ref.actor.optim.clip_grad": 1.0,
    }
    new, old = resolve(keys, "0.9.1"), resolve(keys, "0.6.1")
    assert new.values["actor.clip_grad"].value == 1.0
    assert old.values["actor.clip_grad"].value == 0.5
    assert "actor_rollout_ref.actor.grad_clip" in new.ignored


def test_the_clip_range_is_dead_while_its_two_bounds_are_set() -> None:
    actor = "actor_rollout_ref.actor"
    bounds = {f"{actor}.clip_ratio_low": 0.2, f"{actor}.clip_ratio_high": 0.28}
    config = resolve({f"{actor}.clip_ratio": 0.4, **bounds})
    assert "loss.clip_ratio" not in config.values
    assert f"{actor}.clip_ratio" in config.ignored
    alone = resolve({f"{actor}.clip_ratio": 0.4}, truncated_at="x")
    assert alone.values["loss.clip_ratio"].value == 0.4


def test_mixed_precision_counts_before_the_engine_dtype() -> None:
    fsdp = "actor_rollout_ref.actor.fsdp_config"
    stated = {f"{fsdp}.dtype": "bfloat16", f"{fsdp}.mixed_precision.param_dtype": "fp32"}
    assert resolve(stated).values["actor.dtype"].value == "float32"


def test_a_stated_key_counts_before_the_default_of_another_spelling() -> None:
    config = resolve({"actor_rollout_ref.actor.optim.lr_decay_style": "cosine"})
    assert config.values["actor.lr_schedule"].value == "cosine"


def test_warmup_in_steps_counts_before_the_ratio() -> None:
    optim = "actor_rollout_ref.actor.optim"
    both = {f"{optim}.lr_warmup_steps": 10, f"{optim}.lr_warmup_steps_ratio": 0.1}
    assert values_of(resolve(both))["derived.warmup_steps"] == 10
    ratio = {**both, f"{optim}.lr_warmup_steps": -1, "trainer.total_training_steps": 200}
    assert values_of(resolve(ratio))["derived.warmup_steps"] == 20


def test_mindspeed_rl_sections_overlay_each_other() -> None:
    model = {**MINDSPEED_RL, "model.m.norm_epsilon": "1e-5"}
    shared = {**model, "megatron_training.norm_epsilon": "1e-6"}
    own = {**shared, "actor_config.norm_epsilon": "1e-7"}
    for stated, expected in ((model, 1e-5), (shared, 1e-6), (own, 1e-7)):
        assert (
            values_of(resolve(stated, framework="mindspeed_rl"))["model.rms_norm_eps"] == expected
        )


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("model.rms_norm_eps", 1e-5),
        ("model.attention_dropout", 0.1),
        ("model.hidden_dropout", 0.1),
        ("rollout.temperature", 0.2),
        ("rollout.top_k", 50),
        ("actor.lr_schedule", "linear"),
        ("data.guarantee_order", False),
        ("actor.adam_beta2", 0.999),
        ("model.num_key_value_heads", 4),  # without group_query_attention every head has its own
        ("model.head_dim", 16),
    ],
)
def test_the_dangerous_defaults_of_mindspeed_rl_are_effective(field: str, expected) -> None:
    value = resolve(MINDSPEED_RL, framework="mindspeed_rl").values[field]
    assert value.value == expected
    assert value.raw.provenance.kind in (ProvenanceKind.DEFAULT, ProvenanceKind.DERIVED)


def test_mindspeed_rl_without_its_model_file_leaves_the_model_unknown() -> None:
    stated = {k: v for k, v in MINDSPEED_RL.items() if not k.startswith("model.")}
    config = resolve(stated, framework="mindspeed_rl")
    assert "model.rms_norm_eps" not in config.values
    assert config.values["model.attention_dropout"].value == 0.1


def test_the_old_mini_batch_size_is_in_sequences() -> None:
    new = resolve(MINDSPEED_RL, framework="mindspeed_rl")
    old = resolve({**MINDSPEED_RL, "rl_config.experience_count": 2}, framework="mindspeed_rl")
    assert new.values["actor.mini_batch_size"].value == 32
    assert old.values["actor.mini_batch_size"].value == 4
    for config in (new, old):
        assert "2025-05-15" in str(config.values["actor.mini_batch_size"].assumption)


def test_a_dpo_run_has_no_rollout_defaults(corpus: Path) -> None:
    data = RunData(discover([corpus / "mindspeed_rl" / "dpo_qwen3_30b_a3b_A3.yaml"]))
    config = effective(data.configs, RunManifest())
    assert not any(name.startswith("rollout.") for name in config.values)
    assert config.values["model.rms_norm_eps"].value == 1e-6
    assert config.values["actor.lr"].value == 5e-8


def test_the_model_of_a_verl_run_comes_from_its_config_json(reference_runs: Path) -> None:
    folder = reference_runs / "tiny_model_tokenizer_data" / "model"
    data = RunData(discover([folder, reference_runs / "v091_v1_fsdp2" / "hydra"]))
    config = effective(data.configs, RunManifest())
    eps = config.values["model.rms_norm_eps"]
    assert eps.raw.provenance.kind is ProvenanceKind.MODEL_CONFIG
    assert eps.raw.provenance.line
    assert config.values["rollout.temperature"].value == 1.0  # not generation_config.json's


def test_derived_quantities_of_the_field_example() -> None:
    # train 1024 prompts, mini 256, n 5: 1280 sequences an update, 4 updates, off-policy.
    stated = {
        "data.train_batch_size": 1024,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
        "actor_rollout_ref.rollout.n": 5,
    }
    values = values_of(resolve(stated))
    assert values["derived.sequences_per_optimizer_step"] == 1280
    assert values["derived.optimizer_steps_per_iteration"] == 4
    assert values["derived.sequences_per_iteration"] == 5120
    assert values["derived.on_policy"] is False


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (1e-6, "1e-6", ValueKind.NUMBER),
        (1, 1.0, ValueKind.NUMBER),
        (True, "true", ValueKind.FLAG),
        (True, 1, ValueKind.FLAG),
        ("bf16", "torch.bfloat16", ValueKind.DTYPE),
        ("fp32", "float32", ValueKind.DTYPE),
        ("AdamW", "adamw", ValueKind.NAME),
        ("Qwen/Qwen2.5-7B", "./qwen25-7b/", ValueKind.MODEL_NAME),
        ("/a/train.parquet", "/b/train.parquet", ValueKind.PATH),
        (("1", 2.0), (1, 2), ValueKind.ANY),
        (None, (), ValueKind.ANY),
        (None, "null", ValueKind.ANY),
        (0.1 * 1e-6, 1e-7, ValueKind.NUMBER),  # a product that float64 rounds
        (float("nan"), "nan", ValueKind.NUMBER),
        (True, "True", ValueKind.ANY),
        ("/gpu/code/reward.py", "/npu/repo/code/reward.py", ValueKind.ANY),
        (True, "true", ValueKind.NAME),
        (151645, (151645,), ValueKind.SET),
        ((151645, 151643), (151643, 151645), ValueKind.SET),
        ((151645, 151643), "[151643, 151645]", ValueKind.SET),
        ("/a/train.parquet", ("/b/train.parquet",), ValueKind.PATH),
        (
            "Qwen/Qwen2.5-7B",
            "/cache/hub/models--Qwen--Qwen2.5-7B/snapshots/d149729398750b98c0af14eb82c78cfe92750796",
            ValueKind.MODEL_NAME,
        ),
    ],
)
def test_spellings_of_one_value_are_equal(one, other, kind: ValueKind) -> None:
    assert equal(canonical(one, kind), canonical(other, kind), kind)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (1e-6, 1e-5, ValueKind.NUMBER),
        (None, 0, ValueKind.NUMBER),
        (None, "none", ValueKind.NUMBER),
        (float("nan"), 0.0, ValueKind.NUMBER),
        (True, False, ValueKind.FLAG),
        ("bf16", "fp16", ValueKind.DTYPE),
        ("Qwen2.5-7B", "Qwen2.5-7B-Instruct", ValueKind.MODEL_NAME),
        (("a", "b"), ("b", "a"), ValueKind.ANY),
        (151645, (151645, 151643), ValueKind.SET),
        (1e-6, 1.0000001e-6, ValueKind.NUMBER),
        ("/gpu/code/reward.py", "/gpu/code/rewards.py", ValueKind.ANY),
        ("/gpu/code/reward.py", "reward.py", ValueKind.ANY),
        ("pkg.a/x", "pkg.b/x", ValueKind.ANY),
        (2**60, 2**60 + 1, ValueKind.NUMBER),  # two seeds that float64 cannot tell apart
        (("/a/x.parquet", "/a/y.parquet"), ("/a/y.parquet", "/a/x.parquet"), ValueKind.PATH),
    ],
)
def test_different_values_are_not_equal(one, other, kind: ValueKind) -> None:
    assert not equal(canonical(one, kind), canonical(other, kind), kind)


def spellings(value) -> list:
    """Give ways in which YAML, Python and a command line write one value."""
    if isinstance(value, bool):
        return [value, str(value), str(value).lower(), str(value).upper(), int(value)]
    if isinstance(value, int):
        return [value, str(value), f" {value} ", f"+{value}" if value >= 0 else str(value)]
    return [value, repr(value), f"{value:.17g}", f"{value:.17E}", f"{value!r} "]


flags, numbers = st.booleans(), st.one_of(st.integers(), st.floats(allow_nan=False))
token_ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=4, unique=True)
kinds = st.sampled_from(ValueKind)


@given(numbers, st.data())
def test_a_number_is_equal_in_every_spelling(value, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(spellings(value))) for _ in range(2))
    for kind in (ValueKind.NUMBER, ValueKind.ANY):
        assert equal(canonical(one, kind), canonical(other, kind), kind)


@given(flags, st.data())
def test_a_flag_is_equal_in_every_spelling(value: bool, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(spellings(value))) for _ in range(2))
    assert equal(canonical(one, ValueKind.FLAG), canonical(other, ValueKind.FLAG), ValueKind.FLAG)
    opposite = canonical(not value, ValueKind.FLAG)
    assert not equal(canonical(one, ValueKind.FLAG), opposite, ValueKind.FLAG)


@given(token_ids, st.data())
def test_a_set_is_equal_in_every_order_and_spelling(ids: list[int], data: st.DataObject) -> None:
    order = tuple(data.draw(st.permutations(ids)))
    spellings: list[ConfigLeaf] = [order, (*order, order[0]), str(list(order))]
    written = data.draw(st.sampled_from(spellings))
    one, other = (canonical(value, ValueKind.SET) for value in (tuple(ids), written))
    assert equal(one, other, ValueKind.SET) and one == other
    more = canonical((*ids, 200_001), ValueKind.SET)
    assert not equal(one, more, ValueKind.SET)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3).map(tuple),
)


@given(leaves, leaves, kinds)
def test_equality_is_reflexive_and_symmetric(one, other, kind: ValueKind) -> None:
    first, second = canonical(one, kind), canonical(other, kind)
    assert equal(first, first, kind)
    assert equal(first, second, kind) == equal(second, first, kind)
    assert equal(canonical(first, kind), first, kind)


@given(st.dictionaries(st.sampled_from(VERL_KEYS), leaves, max_size=40))
def test_no_value_of_any_type_stops_the_resolution(values: dict) -> None:
    assert resolve(values).framework == "verl"
    moved = {f"megatron_training.{key.rpartition('.')[2]}": v for key, v in values.items()}
    assert resolve({**MINDSPEED_RL, **moved}, framework="mindspeed_rl").values


def test_a_run_without_a_configuration_has_no_values_not_the_defaults() -> None:
    config = effective([], RunManifest(framework="verl", framework_version="0.9.1"))
    assert config.values == {}


def test_a_default_never_stands_for_a_key_that_is_set_to_something_unknown(tmp_path: Path) -> None:
    script = "python3 -m verl.trainer.main_ppo data.train_batch_size=$BS data.max_prompt_length=64"
    (tmp_path / "run.sh").write_text(f"set -x\n{script}\n")
    values = effective(RunData(discover([tmp_path])).configs, RunManifest()).values
    assert "data.train_batch_size" not in values
    assert values["data.max_prompt_length"].value == 64
    assert values["rollout.temperature"].value == 1.0
    assert values["rollout.temperature"].raw.provenance.kind is ProvenanceKind.DEFAULT
