"""verl by version: defaults, what is read, which version a configuration is of, what changed.

Expected values: the YAML files and the code of the tags, and the verified facts about verl.
"""

from __future__ import annotations

import csv
import re
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from align.core.finding import Finding, Severity, Strength
from align.core.run import RunManifest
from align.frameworks.config_table import config_tables
from align.frameworks.verl_config import config_view
from align.frameworks.verl_defaults import config_defaults, default_history
from align.frameworks.verl_versions import (
    FIRST_SEEN,
    RELEASES,
    before,
    config_version,
    is_covered,
    release_of,
)
from dumps.store.discover import discover
from dumps.store.run_data import RunData

ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
ROLLOUT, REF = "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
TRAINERS = ("fsdp", "megatron")
MEGATRON: dict[str, ConfigLeaf] = {f"{ACTOR}.strategy": "megatron"}
# A launch command that runs under every version from 0.3 on.
RECIPE: dict[str, ConfigLeaf] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 128,
    "data.max_prompt_length": 512,
    "data.max_response_length": 1024,
    "data.filter_overlong_prompts": True,
    f"{MODEL}.path": "/models/Qwen2.5-7B-Instruct",
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.ppo_mini_batch_size": 64,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 8,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 5,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 8,
    f"{REF}.log_prob_micro_batch_size_per_gpu": 8,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "trainer.total_epochs": 15,
}
# A composed configuration has these four at least.
WHOLE: dict[str, ConfigLeaf] = {
    "data.train_batch_size": 8,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ROLLOUT}.temperature": 1.0,
    "algorithm.adv_estimator": "grpo",
}


def stated(values: dict[str, ConfigLeaf]) -> dict[str, ConfigValue]:
    return {
        key: ConfigValue(key, value, Provenance(ProvenanceKind.OVERRIDE, "run.sh", line))
        for line, (key, value) in enumerate(values.items(), 1)
    }


def run_of(values: dict[str, ConfigLeaf], version: str | None) -> EffectiveConfig:
    raw = RawConfig("run.sh", "launch_command", "verl", stated(values))
    return effective([raw], RunManifest(framework="verl", framework_version=version))


def differences(
    values: dict[str, ConfigLeaf], reference: str, candidate: str
) -> dict[str, Finding]:
    found = compare_configs(run_of(values, reference), run_of(values, candidate)).findings
    return {finding.id.removeprefix("config."): finding for finding in found}


def default_of(key: str, version: str | None, values: dict[str, ConfigLeaf]) -> object:
    return config_defaults(stated(values), version)[key].value


@pytest.mark.parametrize(
    ("key", "old", "old_value", "new", "new_value"),
    [
        (f"{MODEL}.use_remove_padding", "0.6.1", False, "0.7.0", True),
        (f"{ROLLOUT}.calculate_log_probs", "0.8.0", False, "0.9.0", True),
        ("data.seed", "0.6.0", 1, "0.6.1", None),
        (f"{ROLLOUT}.mode", "0.6.1", "sync", "0.7.0", "async"),
        (f"{ROLLOUT}.enforce_eager", "0.5.0", True, "0.6.0", False),
        (f"{ROLLOUT}.max_num_seqs", "0.8.0", 1024, "0.9.0", 256),
        (f"{ROLLOUT}.seed", "0.8.0", 0, "0.9.0", 42),
        (f"{ACTOR}.entropy_coeff", "0.3.0", 0.001, "0.4.0", 0),
        (f"{ACTOR}.clip_ratio_c", "0.3.0", "none", "0.4.0", 3.0),
        (f"{REF}.fsdp_config.model_dtype", "0.5.0", "bfloat16", "0.6.0", "fp32"),
        ("algorithm.filter_groups.metric", "0.9.0", None, "0.9.1", "reward"),
    ],
)
def test_a_default_is_that_of_its_version(
    key: str, old: str, old_value: ConfigLeaf, new: str, new_value: ConfigLeaf
) -> None:
    assert default_of(key, old, {}) == old_value
    assert default_of(key, new, {}) == new_value
    assert [(s.since, s.value) for s in default_history(key, "fsdp", old, new)][-1] == (
        new.removesuffix(".0"),
        new_value,
    )


@pytest.mark.parametrize(
    ("key", "old", "old_value", "new", "new_value"),
    [
        (f"{ACTOR}.shuffle", "0.3.0", True, "0.4.0", False),
        (f"{ACTOR}.optim.lr_decay_style", "0.4.1", "linear", "0.5.0", "constant"),
        (f"{ACTOR}.megatron.use_mbridge", "0.6.1", False, "0.7.0", True),
        (f"{ROLLOUT}.tensor_model_parallel_size", "0.5.0", 1, "0.9.1", 2),
    ],
)
def test_the_megatron_trainer_has_defaults_of_its_own(
    key: str, old: str, old_value: ConfigLeaf, new: str, new_value: ConfigLeaf
) -> None:
    assert default_of(key, old, MEGATRON) == old_value
    assert default_of(key, new, MEGATRON) == new_value


def test_a_default_that_names_another_key_follows_what_is_set() -> None:
    key, followed = f"{REF}.log_prob_use_dynamic_bsz", f"{ACTOR}.use_dynamic_bsz"
    assert default_of(key, "0.5.0", {}) is False
    assert default_of(key, "0.5.0", {followed: True}) is True


def test_before_0_4_the_reward_takes_the_kl_that_the_loss_does_not() -> None:
    key = "algorithm.use_kl_in_reward"
    assert default_of(key, "0.3.0", {f"{ACTOR}.use_kl_loss": True}) is False
    assert default_of(key, "0.3.0", {}) is True
    assert default_of(key, "0.4.0", {}) is False


def test_a_composed_configuration_gets_only_what_the_code_takes_of_itself() -> None:
    defaults = config_defaults(stated(WHOLE), "0.5.0")
    assert defaults["data.seed"].value == 1
    assert f"{ACTOR}.ppo_epochs" not in defaults


def test_only_a_default_that_has_changed_needs_a_version() -> None:
    unknown = config_defaults({}, None)
    assert unknown[f"{ACTOR}.optim.lr"].assumption is None
    assert "0.9.1" in str(unknown["data.seed"].assumption)
    later = config_defaults({}, "0.12.0")
    assert "states 0.12.0" in str(later["data.seed"].assumption)
    assert later["data.seed"].source == "default of verl 0.9.1"
    assert config_defaults({}, "0.5.0")["data.seed"].assumption is None


@pytest.mark.parametrize(
    ("version", "values", "dead"),
    [
        ("0.7.1", {f"{ACTOR}.grad_clip": 0.5, f"{ACTOR}.optim.clip_grad": 1.0}, "optim.clip_grad"),
        ("0.8.0", {f"{ACTOR}.grad_clip": 0.5}, "grad_clip"),
        (
            "0.7.1",
            {
                "trainer.use_legacy_worker_impl": "disable",
                f"{ACTOR}.grad_clip": 0.5,
                f"{ACTOR}.optim.clip_grad": 1.0,
            },
            "grad_clip",
        ),
        ("0.5.0", {**MEGATRON, f"{ACTOR}.grad_clip": 0.5}, "grad_clip"),
        ("0.9.1", {**MEGATRON, f"{ACTOR}.optim.lr_scheduler_type": "cosine"}, "lr_scheduler_type"),
        ("0.5.0", {f"{ACTOR}.optim.lr_scheduler_type": "cosine"}, "lr_scheduler_type"),
        ("0.3.0", {f"{ACTOR}.optim.warmup_style": "cosine"}, "warmup_style"),
        ("0.7.1", {f"{ACTOR}.shuffle": True}, "actor.shuffle"),
        ("0.9.1", {"data.truncation": "left"}, "truncation"),
        ("0.9.1", {"trainer.balance_batch": False}, "balance_batch"),
        ("0.9.1", {**MEGATRON, f"{ACTOR}.fsdp_config.fsdp_size": 4}, "fsdp_size"),
        ("0.9.1", {f"{ACTOR}.strategy": "fsdp2", f"{REF}.megatron.seed": 4}, "megatron.seed"),
    ],
)
def test_a_key_that_its_version_or_engine_does_not_read_is_dead(
    version: str, values: dict[str, ConfigLeaf], dead: str
) -> None:
    view = config_view(stated(values), version)
    (key,) = view.dead
    assert key.endswith(dead)
    assert key not in view.values


@pytest.mark.parametrize(
    ("version", "values"),
    [
        ("0.7.1", {f"{ACTOR}.grad_clip": 0.5}),
        ("0.8.0", {f"{ACTOR}.optim.clip_grad": 0.5}),
        ("0.5.0", {**MEGATRON, f"{ACTOR}.optim.clip_grad": 0.5}),
        ("0.5.0", {**MEGATRON, f"{ACTOR}.shuffle": True}),
        ("0.8.0", {f"{ACTOR}.shuffle": True}),
        ("0.5.0", {f"{ACTOR}.optim.warmup_style": "cosine"}),
        ("0.6.1", {"data.truncation": "left"}),
        ("0.9.1", {"trainer.balance_batch": False, "trainer.use_v1": False}),
        (None, {f"{ACTOR}.grad_clip": 0.5, "data.truncation": "left"}),
    ],
)
def test_a_key_that_is_read_counts(version: str | None, values: dict[str, ConfigLeaf]) -> None:
    view = config_view(stated(values), version)
    assert view.dead == {}
    assert set(view.values) == set(values)


def test_warmup_style_is_the_schedule_in_0_5_and_overrides_it_from_0_6_on() -> None:
    cosine: dict[str, ConfigLeaf] = {f"{ACTOR}.optim.warmup_style": "cosine"}
    for version in ("0.5.0", "0.6.1", "0.9.1"):
        assert run_of(cosine, version).values["actor.lr_schedule"].value == "cosine"
    kind: dict[str, ConfigLeaf] = {f"{ACTOR}.optim.lr_scheduler_type": "cosine"}
    assert run_of(kind, "0.5.0").values["actor.lr_schedule"].value == "constant"
    assert run_of(kind, "0.6.0").values["actor.lr_schedule"].value == "cosine"


@pytest.mark.parametrize(
    ("version", "values", "prompts"),
    [
        ("0.1", {}, 16),
        ("0.2.0", {}, 64),
        ("0.2.0", MEGATRON, 16),
        ("0.3.0", MEGATRON, 64),
        ("0.9.1", {}, 64),
    ],
)
def test_very_old_mini_batches_are_counted_in_responses(
    version: str, values: dict[str, ConfigLeaf], prompts: int
) -> None:
    sizes: dict[str, ConfigLeaf] = {f"{ACTOR}.ppo_mini_batch_size": 64, f"{ROLLOUT}.n": 4}
    size = run_of(sizes | values, version).values["actor.mini_batch_size"]
    assert size.value == prompts
    assert ("counts responses" in str(size.raw.provenance.text)) == (prompts == 16)


@pytest.mark.parametrize(
    ("version", "values", "within"),
    [
        ("0.7.1", {}, "micro-batch"),
        ("0.7.1", {"trainer.use_legacy_worker_impl": "disable"}, "mini-batch"),
        ("0.6.1", {"trainer.use_legacy_worker_impl": "disable"}, "micro-batch"),
        ("0.8.0", {}, "mini-batch"),
    ],
)
def test_the_loss_is_normalised_as_the_version_does(
    version: str, values: dict[str, ConfigLeaf], within: str
) -> None:
    assert run_of(RECIPE | values, version).values["loss.normalization"].value == within


def test_rows_that_are_not_shuffled_need_no_sampler() -> None:
    assert run_of(RECIPE, "0.6.1").values["data.sampler"].value == "torch"
    assert run_of(RECIPE, "0.7.0").values["data.sampler"].value == "torchdata"
    assert "data.sampler" not in run_of(RECIPE | {"data.shuffle": False}, "0.7.0").values


FSDP_CHANGES = {  # between 0.5.0 and 0.9.1: from, to, since
    "data.sampler": ("torch", "torchdata", "0.7"),
    "data.seed": (1, 67280421310721, "0.6.1"),
    "loss.normalization": ("micro-batch", "mini-batch", "0.8"),
    "model.remove_padding": (False, True, "0.7"),
    "ref.fsdp_config.model_dtype": ("bfloat16", "fp32", "0.6"),
    "rollout.calculate_log_probs": (False, True, "0.9"),
    "rollout.enforce_eager": (True, False, "0.6"),
    "rollout.max_num_seqs": (1024, 256, "0.9"),
    "rollout.mode": ("sync", "async", "0.7"),
    "rollout.seed": (0, 42, "0.9"),
    "trainer.implementation": ("auto", True, "0.9.1"),
}
_BOTH = ("data.sampler", "data.seed", "loss.normalization", "rollout.calculate_log_probs")
_ENGINE = ("rollout.enforce_eager", "rollout.max_num_seqs", "rollout.mode", "rollout.seed")
MEGATRON_CHANGES = {
    **{name: FSDP_CHANGES[name] for name in (*_BOTH, *_ENGINE)},
    "actor.parallel_options.use_mbridge": (False, True, "0.7"),
    "ref.megatron.use_mbridge": (False, True, "0.7"),
    "ref.megatron.use_distributed_optimizer": (False, True, "0.6"),
    "rollout.chunked_prefill": (False, True, "0.6"),
    "rollout.tensor_parallel_size": (1, 2, "0.6"),
    "trainer.implementation": (False, True, "0.9"),
}


@pytest.mark.parametrize(
    ("values", "changes", "without_effect"),
    [
        (RECIPE, FSDP_CHANGES, set()),
        (RECIPE | MEGATRON, MEGATRON_CHANGES, {"actor.shuffle_seed", "critic.lr"}),
    ],
    ids=TRAINERS,
)
def test_one_recipe_under_0_5_and_0_9_differs_only_in_what_changed_and_each_is_dated(
    values: dict[str, ConfigLeaf],
    changes: dict[str, tuple[ConfigLeaf, ConfigLeaf, str]],
    without_effect: set[str],
) -> None:
    found = differences(values, "0.5.0", "0.9.1")
    silent = {n for n, f in found.items() if f.mechanism and f.mechanism.strength is Strength.NONE}
    assert silent - set(changes) == without_effect
    assert set(found) - without_effect == set(changes)
    for name, (old, new, since) in changes.items():
        assert (found[name].reference, found[name].candidate) == (old, new), name
        assert re.search(rf"verl (changed it .* in )?{re.escape(since)}\b", found[name].why.en), (
            name
        )
        assert since in found[name].why.zh
    worst = {name for name, f in found.items() if f.severity is Severity.ERROR}
    assert worst == {"data.sampler", "data.seed"}


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("version", RELEASES)
def test_one_recipe_under_one_version_does_not_differ(version: str, trainer: str) -> None:
    values = RECIPE | (MEGATRON if trainer == "megatron" else {})
    assert differences(values, version, version) == {}


def test_what_a_run_sets_itself_is_not_called_a_changed_default() -> None:
    key = f"{ROLLOUT}.enforce_eager"
    old, new = run_of({**RECIPE, key: True}, "0.9.0"), run_of({**RECIPE, key: False}, "0.9.1")
    (finding,) = [
        f for f in compare_configs(old, new).findings if f.id == "config.rollout.enforce_eager"
    ]
    assert "default" not in finding.why.en


def test_a_default_written_out_is_still_the_default() -> None:
    key = f"{MODEL}.use_remove_padding"
    reference, candidate = run_of({**RECIPE, key: "False"}, "0.5.0"), run_of(RECIPE, "0.9.1")
    found = compare_configs(reference, candidate).findings
    (finding,) = [f for f in found if f.id == "config.model.remove_padding"]
    assert "changed from False to True in verl 0.7" in finding.why.en


def test_the_table_has_the_first_seen_keys_from_their_version_on() -> None:
    rows = _rows()
    for key, version in FIRST_SEEN:
        if not before(version, "0.3.0"):
            for trainer in TRAINERS:
                firsts = [
                    row["first"]
                    for row in rows
                    if row["key"] == key
                    and row["trainer"] in ("both", trainer)
                    and row["origin"] == "yaml"
                ]
                assert firsts and firsts[0] == version, key


def test_a_version_is_guessed_from_the_newest_key_of_a_composed_configuration() -> None:
    for index, (_, version) in enumerate(FIRST_SEEN):
        values: dict[str, ConfigLeaf] = {**WHOLE, **{key: 1 for key, _ in FIRST_SEEN[index:]}}
        assert config_version(stated(values)) == version
    note = run_of({**WHOLE, f"{ROLLOUT}.logprobs_mode": "raw_logprobs"}, None).notes
    assert any("0.7.0 or later is assumed" in text.en for text in note)


def test_overrides_alone_do_not_tell_an_old_version() -> None:
    assert config_version(stated({f"{ROLLOUT}.logprobs_mode": "raw_logprobs"})) is None
    assert config_version(stated({"trainer.use_v1": False})) == "0.9.0"


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("grpo_v02", "0.2.0"),
        ("grpo_v03_a", "0.4.0"),  # a development version: it has use_kl_in_reward already
        ("grpo_v06", "0.6.0"),
        ("grpo_v07", "0.7.0"),
        ("printed_dapo_gpu.txt", "0.5.0"),
        ("printed_grpo_npu.txt", "0.6.1"),
        ("printed_grpo_gpu_v08.txt", "0.7.1"),  # a development version of 0.8
    ],
)
def test_real_configurations_are_dated_by_their_keys(corpus: Path, name: str, guess: str) -> None:
    configs = RunData(discover([corpus / "verl_configs" / name])).configs
    values = {key: value for config in configs for key, value in config.values.items()}
    assert config_version(values) == guess


def test_every_key_that_matters_is_a_field_or_harmless_for_a_reason(shared: Path) -> None:
    lines = (shared / "facts" / "verl_config_keys.md").read_text(encoding="utf-8").splitlines()
    keys = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:]
    assert len(keys) == 120
    tables = config_tables("verl")
    assert tables is not None
    in_formulas = {key: f.field for f in tables.formulas for key in f.keys}
    known = {row["key"] for row in _rows()}
    for key in keys:
        name = in_formulas.get(key) or field_of(tables, key)
        members = [k for k in tables.keys if k.startswith(f"{key}.")]
        if name is not None:
            assert field_named(name).meaning.zh
        elif not members:
            reason = why_ignored(tables, key)
            assert reason is not None and reason.en and reason.zh, key
        has_default = key in known or any(k.startswith(f"{key}.") for k in known)
        assert has_default or key in (f"{MODEL}.path", f"{ACTOR}.megatron.full_determinism"), key


@given(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 3)))
def test_a_release_stands_for_the_versions_from_it_to_the_next(parts: tuple[int, ...]) -> None:
    version = ".".join(map(str, parts))
    index = RELEASES.index(release_of(version))
    assert index == 0 or not before(version, RELEASES[index])
    assert index + 1 == len(RELEASES) or before(version, RELEASES[index + 1])
    assert release_of(f"v{version}") == release_of(version)
    assert is_covered(version) == any(
        release.rpartition(".")[0] == version.rpartition(".")[0] for release in RELEASES
    )


@given(st.sampled_from(RELEASES), st.sampled_from(RELEASES), st.sampled_from(TRAINERS), st.data())
def test_a_history_ends_with_the_default_of_its_version(
    one: str, other: str, trainer: str, data: st.DataObject
) -> None:
    values = MEGATRON if trainer == "megatron" else {}
    key = data.draw(st.sampled_from(sorted(config_defaults(stated(values), one))))
    history = default_history(key, trainer, one, other)
    assert history == default_history(key, trainer, other, one)
    if history and key != "algorithm.use_kl_in_reward":
        old, new = sorted((one, other), key=RELEASES.index)
        defaults = config_defaults(stated(values), old), config_defaults(stated(values), new)
        if all(key in table for table in defaults):
            assert history[0].value == defaults[0][key].value
            assert history[-1].value == defaults[1][key].value


def _rows() -> list[dict[str, str]]:
    text = files("align.frameworks").joinpath("verl_defaults.tsv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
