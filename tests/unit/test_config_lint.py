"""Checks of one run: each fires on its fault, stays silent on its twin, and on healthy runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from align.config.lint import OneRun, findings, one_run
from align.config.lint.checks import checks
from align.config.lint.example import Example
from align.core.environment import EnvironmentFact
from align.core.finding import Finding, Severity, Side
from align.core.run import RunManifest
from align.core.rung import Rung
from dumps.store.discover import discover
from dumps.store.run_data import RunData

EXAMPLES = Path(__file__).resolve().parents[2] / "align" / "examples"
UNHEALTHY = ("grpo_v03_a", "grpo_v03_b")  # GRPO with n left at its default of 1


def _examples(kind: str) -> list[object]:
    return [
        pytest.param(check, example, id=f"{check.__name__.rpartition('.')[2]}-{number}")
        for check in checks()
        for number, example in enumerate(getattr(check, kind))
    ]


def _name(check: ModuleType) -> str:
    return f"lint.{check.__name__.rpartition('.')[2]}"


@pytest.mark.parametrize(("check", "example"), _examples("FIRES"))
def test_a_check_fires_on_its_fault(check: ModuleType, example: Example) -> None:
    found = list(check.check(example.run()))
    assert found
    assert all(f.id == _name(check) or f.id.startswith(f"{_name(check)}.") for f in found)
    assert min(found, key=lambda f: f.severity.rank).severity is example.severity
    assert all(f.evidence for f in found)


@pytest.mark.parametrize(("check", "example"), _examples("SILENT"))
def test_a_check_is_silent_on_the_twin(check: ModuleType, example: Example) -> None:
    assert list(check.check(example.run())) == []


def test_every_check_has_both_kinds_of_example_and_names_its_source() -> None:
    for check in checks():
        assert check.FIRES and check.SILENT, check.__name__
        assert "Source: " in (check.__doc__ or ""), check.__name__


def test_every_finding_has_consequence_and_fix_in_both_languages() -> None:
    for check in checks():
        for example in check.FIRES:
            for finding in check.check(example.run()):
                for text in (finding.title, finding.why, finding.fix):
                    assert text.en and text.zh
                assert any("一" <= letter <= "鿿" for letter in finding.why.zh), finding.id
                assert finding.why.en.rstrip().endswith("."), finding.id


def test_no_check_trips_over_a_run_that_states_nothing() -> None:
    assert findings(Example().run()) == []


def test_findings_are_sorted_worst_first_then_in_causal_order() -> None:
    run = Example(
        {
            "rollout.top_p": 0.9,
            "model.attention_dropout": 0.1,
            "rollout.quantization": "fp8",
            "data.train_batch_size": 8,
            "actor.mini_batch_size": 32,
            "actor.dynamic_batch": False,
        }
    ).run()
    found = findings(run)
    assert [f.severity.rank for f in found] == sorted(f.severity.rank for f in found)
    errors = [f.id for f in found if f.severity is Severity.ERROR]
    assert errors == ["lint.dropout.attention_dropout", "lint.batch_sizes"]


def _lint(*paths: Path) -> tuple[OneRun, list[Finding]]:
    data = RunData(discover(list(paths)))
    facts: dict[str, EnvironmentFact] = {}
    for source in data.environments:
        facts = {**source.facts, **facts}
    manifest = RunManifest(data.framework, data.framework_version, data.run.manifest.device)
    run = one_run(data.configs, manifest, facts)
    return run, findings(run)


def _write_mindspeed_rl(folder: Path, epsilon: str) -> None:
    (folder / "grpo.yaml").write_text(
        "defaults:\n"
        "  - model:\n"
        "      - qwen3_8b\n"
        "megatron_training:\n"
        "  model: qwen3_8b\n"
        "  stage: ray_grpo\n"
        "  attention_dropout: 0.0\n"
        "  hidden_dropout: 0.0\n"
        "actor_config:\n"
        "  model: qwen3_8b\n"
        "  lr: 1e-6\n"
        "rl_config:\n"
        "  n_samples_per_prompt: 8\n"
        "generate_config:\n"
        "  dtype: bfloat16\n",
        encoding="utf-8",
    )
    (folder / "model").mkdir()
    (folder / "model" / "qwen3_8b.yaml").write_text(
        "qwen3_8b:\n"
        "  num_layers: 36\n"
        "  hidden_size: 4096\n"
        "  num_attention_heads: 32\n"
        "  rotary_base: 1000000\n"
        "  normalization: RMSNorm\n"
        "  position_embedding_type: rope\n"
        "  swiglu: true\n"
        "  qk_layernorm: true\n"
        "  disable_bias_linear: true\n"
        "  untie_embeddings_and_output_weights: true\n" + epsilon,
        encoding="utf-8",
    )
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["Qwen3ForCausalLM"],
                "model_type": "qwen3",
                "num_hidden_layers": 36,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "rms_norm_eps": 1e-6,
                "rope_theta": 1000000,
                "tie_word_embeddings": False,
            }
        ),
        encoding="utf-8",
    )


def test_one_mindspeed_rl_run_with_two_epsilons_is_found_in_its_files(tmp_path: Path) -> None:
    _write_mindspeed_rl(tmp_path, epsilon="")
    run, found = _lint(tmp_path)
    assert run.framework == "mindspeed_rl"
    (finding,) = [f for f in found if f.id == "lint.norm_epsilon"]
    assert finding.severity is Severity.ERROR
    assert finding.rung is Rung.FORWARD
    assert [value for e in finding.evidence for value in e.values] == [1e-5, 1e-6]
    assert finding.evidence[1].source.endswith("config.json")
    assert finding.evidence[1].side is Side.BOTH


def test_the_same_run_with_one_epsilon_is_clean(tmp_path: Path) -> None:
    _write_mindspeed_rl(tmp_path, epsilon="  norm_epsilon: 1e-6\n")
    _, found = _lint(tmp_path)
    assert [f.id for f in found if f.id.startswith(("lint.norm_epsilon", "lint.model_in"))] == []


# Qwen2.5-7B's published config.json
QWEN25_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}


@pytest.mark.parametrize(
    ("changed", "found_as"),
    [
        ({}, None),
        ({"rms_norm_eps": 1e-5}, "lint.norm_epsilon"),
        ({"rope_theta": 10000.0}, "lint.model_in_rollout.rope_theta"),
        ({"tie_word_embeddings": True}, "lint.model_in_rollout.tie_word_embeddings"),
        ({"num_key_value_heads": 28}, "lint.model_in_rollout.num_key_value_heads"),
        ({"vocab_size": 155136}, "lint.vocabulary"),
    ],
)
def test_the_real_recipe_is_clean_with_its_model_and_not_with_another(
    corpus: Path, tmp_path: Path, changed: dict[str, object], found_as: str | None
) -> None:
    (tmp_path / "model").mkdir()
    for name in ("grpo_qwen25_7b_A3.yaml", "model/qwen25_7b.yaml"):
        content = (corpus / "mindspeed_rl" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(content, encoding="utf-8")
    config = json.dumps(QWEN25_7B | changed)
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    _, found = _lint(tmp_path)
    errors = [f.id for f in found if f.severity is Severity.ERROR]
    assert errors == ([found_as] if found_as else [])


_A, _R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_MEGATRON = f"{_A}.megatron.override_transformer_config"
_NPU = {"trainer.device": "npu"}


@pytest.mark.parametrize(
    ("trainer", "keys", "found_as"),
    [
        ("ppo", {f"{_R}.dtype": "float16"}, "rollout_dtype"),
        (
            "ppo",
            {
                f"{_R}.temperature": 0.6,
                f"{_R}.logprobs_mode": "raw_logprobs",
                "algorithm.rollout_correction.rollout_is": "token",
            },
            "raw_log_probs",
        ),
        ("ppo", {f"{_R}.top_p": 0.9}, "truncated_sampling"),
        ("ppo", {f"{_R}.temperature": 0, "algorithm.adv_estimator": "grpo"}, "greedy_rollout"),
        ("ppo", {f"{_R}.enable_prefix_caching": True, **_NPU}, "prefix_caching"),
        (
            "ppo",
            {
                f"{_R}.enable_chunked_prefill": False,
                f"{_R}.max_num_batched_tokens": 512,
            },
            "prefill_budget",
        ),
        ("ppo", {f"{_R}.quantization": "fp8"}, "quantised_rollout"),
        ("ppo", {f"{_R}.max_model_len": 700}, "model_length"),
        ("ppo", {f"{_R}.val_kwargs.temperature": 1.0}, "validation_sampling"),
        (
            "ppo",
            {
                f"{_A}.ulysses_sequence_parallel_size": 2,
                "actor_rollout_ref.model.use_remove_padding": False,
            },
            "ulysses_padding",
        ),
        (
            "ppo",
            {
                f"{_A}.ppo_mini_batch_size": 1024,
                f"{_A}.ppo_micro_batch_size_per_gpu": 2,
                f"{_R}.log_prob_micro_batch_size_per_gpu": 4,
            },
            "log_prob_micro_batch",
        ),
        (
            "ppo",
            {f"{_A}.use_dynamic_bsz": True, f"{_A}.ppo_max_token_len_per_gpu": 512},
            "token_budget.actor.max_tokens_per_micro_batch",
        ),
        (
            "megatron",
            {f"{_A}.megatron.context_parallel_size": 2, **_NPU},
            "context_parallel_override",
        ),
        ("megatron", {f"{_A}.use_kl_loss": True, **_NPU}, "distributed_optimizer"),
        (
            "megatron",
            {
                f"{_A}.megatron.expert_model_parallel_size": 4,
                f"{_A}.megatron.tensor_model_parallel_size": 2,
            },
            "expert_tensor_parallel",
        ),
        ("megatron", {f"{_MEGATRON}.apply_rope_fusion": True, **_NPU}, "rope_fusion"),
        (
            "megatron",
            {f"{_A}.megatron.pipeline_model_parallel_size": 2, **_NPU},
            "pipeline_parallel",
        ),
        ("ppo", {"data.max_response_length": 30720, **_NPU}, "hccl_timeout"),
        ("ppo", {f"{_A}.kl_loss_coef": 0.01}, "kl_coefficient_unused"),
        ("ppo", {"algorithm.filter_groups.enable": True}, "group_of_one"),
        ("ppo", {f"{_A}.clip_ratio": 0.3}, "clip_ratio_unused.clip_ratio"),
        ("ppo", {f"{_A}.grad_clip": 0.3}, "clip_grad_unused"),
        (
            "megatron",
            {f"{_A}.megatron.override_ddp_config.overlap_param_gather": True},
            "overlap_param_gather",
        ),
        ("ppo", {f"{_A}.fsdp_config.model_dtype": "bfloat16"}, "optimizer_precision.weights"),
        ("megatron", {f"{_A}.optim.exp_avg_dtype": "bf16"}, "optimizer_precision.states"),
        ("ppo", {"skip.rollout_tq.enable": True, "skip.rollout_tq.steps": []}, "replay.steps"),
        ("ppo", {"skip.rollout.enable": True, "skip.rollout.steps": [1]}, "replay.trainer"),
        ("ppo", {f"{_A}.ppo_mini_batch_size": 2048}, "batch_sizes"),
        ("ppo", {f"{_A}.policy_loss.loss_mode": "kl_cov"}, "covariance_selection"),
        (
            "megatron",
            {
                f"{_A}.optim.lr_decay_steps": 198,
                f"{_A}.optim.lr_decay_style": "linear",
                "trainer.total_training_steps": 220,
            },
            "decay_steps",
        ),
        (
            "ppo",
            {
                f"{_R}.data_parallel_size": 2,
                f"{_R}.expert_parallel_size": 2,
                **_NPU,
            },
            "rollout_data_parallel",
        ),
        (
            "ppo",
            {"trainer.critic_warmup": 20, "algorithm.adv_estimator": "grpo", f"{_R}.n": 8},
            "critic_warmup",
        ),
        (
            "ppo",
            {"data.interleave_input": False, "data.interleave_output": True},
            "interleave",
        ),
        (
            "ppo",
            {"trainer.nnodes": 1, "trainer.n_gpus_per_node": 3},
            "divisibility.trainer.world_size",
        ),
    ],
)
def test_a_real_verl_key_reaches_its_check(
    reference_runs: Path, tmp_path: Path, trainer: str, keys: dict[str, object], found_as: str
) -> None:
    assert f"lint.{found_as}" not in _found_with(reference_runs, tmp_path / "before", trainer, {})
    assert f"lint.{found_as}" in _found_with(reference_runs, tmp_path / "after", trainer, keys)


@pytest.mark.parametrize(
    ("keys", "cure", "found_as"),
    [
        (
            {f"{_A}.megatron.context_parallel_size": 2},
            {f"{_MEGATRON}.context_parallel_size": 2},
            "context_parallel_override",
        ),
        (
            {f"{_A}.use_kl_loss": True},
            {f"{_MEGATRON}.use_distributed_optimizer": True},
            "distributed_optimizer",
        ),
        (
            {
                f"{_A}.megatron.expert_model_parallel_size": 4,
                f"{_A}.megatron.tensor_model_parallel_size": 2,
            },
            {f"{_A}.megatron.expert_tensor_parallel_size": 1},
            "expert_tensor_parallel",
        ),
    ],
)
def test_the_further_switch_that_npu_needs_silences_the_check(
    reference_runs: Path,
    tmp_path: Path,
    keys: dict[str, object],
    cure: dict[str, object],
    found_as: str,
) -> None:
    keys = {**keys, **_NPU}
    broken = _found_with(reference_runs, tmp_path / "broken", "megatron", keys)
    cured = _found_with(reference_runs, tmp_path / "cured", "megatron", {**keys, **cure})
    assert f"lint.{found_as}" in broken
    assert f"lint.{found_as}" not in cured


def _found_with(runs: Path, folder: Path, trainer: str, keys: dict[str, object]) -> list[str]:
    """Return the ids found in verl's default configuration with these overrides."""
    name = "ppo_megatron_trainer" if trainer == "megatron" else "ppo_trainer"
    hydra = folder / ".hydra"
    hydra.mkdir(parents=True)
    text = (runs / f"{name}.resolved.yaml").read_text(encoding="utf-8")
    (hydra / "config.yaml").write_text(text, encoding="utf-8")
    overrides = "".join(f"- {key}={value}\n" for key, value in keys.items())
    (hydra / "overrides.yaml").write_text(overrides, encoding="utf-8")
    return [f.id for f in _lint(folder)[1]]


def test_two_different_model_folders_leave_the_model_unknown(tmp_path: Path) -> None:
    _write_mindspeed_rl(tmp_path, epsilon="")
    other = tmp_path / "critic"
    other.mkdir()
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    (other / "config.json").write_text(text.replace("1e-06", "1e-05"), encoding="utf-8")
    run, _ = _lint(tmp_path)
    assert not run.model and not run.model_file


def _verl_runs(shared: Path) -> list[tuple[Path, ...]]:
    folders = ("corpus/verl_configs", "corpus/verl_logs", "corpus/metrics", "reference/verl_runs")
    found = [(path,) for name in folders for path in sorted((shared / name).iterdir())]
    return [paths for paths in found if paths[0].name not in UNHEALTHY]


def _mindspeed_rl_runs(shared: Path) -> list[tuple[Path, ...]]:
    folder = shared / "corpus" / "mindspeed_rl"
    files = sorted([*folder.glob("*.yaml"), *folder.glob("old_2025-05/*.yaml")])
    models = {p.stem.removeprefix("qwen"): p for p in (folder / "model").glob("*.yaml")}
    return [(p, *(m for name, m in models.items() if name in p.stem)) for p in files]


def test_healthy_real_runs_give_no_error(shared: Path) -> None:
    runs = _verl_runs(shared) + _mindspeed_rl_runs(shared)
    checked, errors = 0, []
    for paths in runs:
        run, found = _lint(*paths)
        checked += bool(run.config.values) and run.framework in ("verl", "mindspeed_rl")
        errors += [(paths[0].name, f.id) for f in found if f.severity is Severity.ERROR]
    assert errors == []
    assert checked >= 20


def test_the_example_runs_give_no_error() -> None:
    for name in ("reference", "candidate", "repeat"):
        run, found = _lint(EXAMPLES / name)
        assert run.config.values
        assert [f.id for f in found if f.severity is Severity.ERROR] == []


def test_a_real_grpo_run_with_one_response_a_prompt_is_told(corpus: Path) -> None:
    _, found = _lint(corpus / "verl_configs" / "grpo_v03_a")
    assert found[0].id == "lint.group_of_one"
    assert found[0].evidence[0].text == "'n': 1"
