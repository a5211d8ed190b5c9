"""Comparing configurations: every fault is named, every clean pair stays silent."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from omegaconf import OmegaConf

from align.cli.config import command
from align.config.rung import compare
from align.core.finding import Severity, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from dumps.store.discover import discover
from dumps.store.run_data import RunData

SEVERE = (Severity.ERROR, Severity.WARNING)

# Qwen2.5-7B's config.json as published (Apache-2.0), the keys that describe the architecture.
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
# The verl run that does what MindSpeed-RL's grpo_qwen25_7b_A3.yaml says.
AS_MINDSPEED_RL = [
    "data.train_batch_size=32",
    "data.max_prompt_length=2048",
    "data.max_response_length=2048",
    "data.seed=1",
    "data.dataloader_num_workers=0",
    "data.filter_overlong_prompts=true",
    "actor_rollout_ref.model.path=/models/Qwen2.5-7B",
    "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.optim.betas=[0.9,0.95]",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.max_model_len=4096",
    "algorithm.adv_estimator=grpo",
    "trainer.n_gpus_per_node=16",
    "trainer.total_training_steps=500",
    "trainer.balance_batch=false",
]


def compared(reference: Path, candidate: Path) -> RungResult:
    return compare(RunData(discover([reference])), RunData(discover([candidate])))


def severe(result: RungResult) -> dict[str, Severity]:
    return {f.id: f.severity for f in result.findings if f.severity in SEVERE}


@pytest.fixture
def mindspeed_rl(corpus: Path, tmp_path: Path) -> Path:
    """Copy MindSpeed-RL's 7B configuration with its model files."""
    folder = tmp_path / "mindspeed_rl"
    (folder / "model").mkdir(parents=True)
    source = corpus / "mindspeed_rl"
    for name in ("grpo_qwen25_7b_A3.yaml", "model/qwen25_7b.yaml"):
        shutil.copyfile(source / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def verl_yaml(reference_runs: Path) -> str:
    """Compose the verl run that does the same."""
    config = OmegaConf.load(reference_runs / "ppo_trainer.resolved.yaml")
    config.merge_with_dotlist(AS_MINDSPEED_RL)
    return OmegaConf.to_yaml(config)


@pytest.fixture
def verl(verl_yaml: str, tmp_path: Path) -> Path:
    """Give its run folder."""
    folder = tmp_path / "verl"
    folder.mkdir()
    (folder / "config.yaml").write_text(verl_yaml, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(QWEN, indent=1), encoding="utf-8")
    return folder


def with_overrides(run: Path, *overrides: str) -> Path:
    """Copy a run and start it with overrides, as Hydra records them."""
    copy = run.with_name("candidate")
    shutil.copytree(run, copy)
    lines = "".join(f"- {override}\n" for override in overrides)
    (copy / "overrides.yaml").write_text(lines, encoding="utf-8")
    return copy


def test_only_the_rollout_dtype_is_blamed_between_two_real_runs(reference_runs: Path) -> None:
    result = compared(
        reference_runs / "v091_v1_vllmcpu", reference_runs / "v091_v1_vllmcpu_bf16rollout"
    )
    assert severe(result) == {"config.rollout.dtype": Severity.ERROR}
    assert result.status is RungStatus.DIVERGED
    finding = result.findings[0]
    assert (finding.reference, finding.candidate) == ("float32", "bfloat16")
    assert all(e.line and "dtype" in (e.text or "") for e in finding.evidence)
    assert finding.mechanism is not None
    assert finding.mechanism.acts_on is Rung.ROLLOUT
    assert finding.mechanism.strength is Strength.NUMERIC
    assert "training/rollout_probs_diff*" in finding.mechanism.signature


def test_between_two_real_npu_runs_only_world_size_and_offload_differ(corpus: Path) -> None:
    logs = corpus / "verl_logs"
    result = compared(logs / "grpo_npu_sync_repeat_a.txt", logs / "grpo_npu_sync_repeat_b.txt")
    assert severe(result) == {"config.trainer.world_size": Severity.WARNING}
    assert [f.id for f in result.findings if f.id != "config.notes"] == [
        "config.trainer.world_size",
        "config.ref.offload",
    ]
    world, offload = result.findings[:2]
    assert (world.reference, world.candidate) == (2, 4)
    assert world.mechanism is not None and offload.mechanism is not None
    assert world.mechanism.strength is Strength.NUMERIC
    assert offload.mechanism.strength is Strength.NONE


def test_a_default_epsilon_is_found_where_one_line_is_missing(
    mindspeed_rl: Path, tmp_path: Path
) -> None:
    candidate = tmp_path / "candidate"
    shutil.copytree(mindspeed_rl, candidate)
    model = candidate / "model" / "qwen25_7b.yaml"
    lines = model.read_text(encoding="utf-8").splitlines()
    model.write_text("\n".join(x for x in lines if "norm_epsilon" not in x), encoding="utf-8")
    main = "grpo_qwen25_7b_A3.yaml"
    run = CliRunner().invoke(
        command, ["diff", str(mindspeed_rl / main), str(candidate / main), "--json"]
    )
    assert run.exit_code == 1
    findings = [f for f in json.loads(run.stdout)["findings"] if f["severity"] != "info"]
    assert [(f["id"], f["reference"], f["candidate"]) for f in findings] == [
        ("config.model.rms_norm_eps", 1e-6, 1e-5)
    ]
    assert "norm_epsilon: 1e-06" in findings[0]["fix"]


def test_a_configuration_against_itself_shows_no_difference(
    corpus: Path, reference_runs: Path
) -> None:
    paths = [
        *(corpus / "verl_configs").iterdir(),
        *(corpus / "mindspeed_rl").glob("*.yaml"),
        *reference_runs.glob("*.resolved.yaml"),
        corpus / "metrics" / "wandb_rl",
    ]
    for path in paths:
        data = RunData(discover([path]))
        result = compare(data, data)
        assert {f.id for f in result.findings} <= {"config.notes", "config.unknown_keys"}, path
        assert result.status is RungStatus.ALIGNED


def test_an_aligned_pair_of_two_frameworks_has_no_error(verl: Path, mindspeed_rl: Path) -> None:
    result = compared(verl, mindspeed_rl)
    # no key sets it: verl 0.9 divides by the mini-batch's tokens, MindSpeed-RL by a micro-batch's
    assert severe(result) == {"config.loss.normalization": Severity.WARNING}
    fields = {
        row[0]: row
        for table in result.tables
        if table.id == "config.compared"
        for row in table.rows
    }
    for name in ("model.rms_norm_eps", "loss.kl_coef", "actor.mini_batch_size", "actor.dtype"):
        assert fields[name][1] == "=", name
    assert len(fields) > 70


FAULTS = [
    ("temperature: 1.0", "", "config.rollout.temperature", 1.0, 0.2),
    ("top_k: -1", "", "config.rollout.top_k", -1, 50),
    ("attention_dropout: 0.0", "", "config.model.attention_dropout", 0.0, 0.1),
    ("hidden_dropout: 0.0", "", "config.model.hidden_dropout", 0.0, 0.1),
    ("lr_decay_style: constant", "", "config.actor.lr_schedule", "constant", "linear"),
    ("mini_batch_size: 32", "mini_batch_size: 16", "config.actor.mini_batch_size", 32, 16),
    ("lr: 1e-6", "lr: 1e-5", "config.actor.lr", 1e-6, 1e-5),
    ("init_kl_coef: 0.001", "", "config.loss.kl_coef", 0.001, 0.01),
    ("adam_beta2: 0.95", "", "config.actor.adam_beta2", 0.95, 0.999),
    ("max_tokens: 2048", "", "config.data.max_response_length", 2048, 128),
    ("seed: 1\n", "seed: 2\n", "config.data.seed", 1, 2),
    ('dtype: "bfloat16"', 'dtype: "float16"', "config.rollout.dtype", "bfloat16", "float16"),
    ("norm_epsilon: 1e-6", "", "config.model.rms_norm_eps", 1e-6, 1e-5),
    ("rotary_base: 1000000", "", "config.model.rope_theta", 1e6, 10000),
    ("num_query_groups: 4", "num_query_groups: 7", "config.model.num_key_value_heads", 4, 7),
    ("group_query_attention: true", "", "config.model.num_key_value_heads", 4, 28),
    ("add_qkv_bias: true", "", "config.model.qkv_bias", True, False),
]


@pytest.mark.parametrize(
    ("line", "instead", "finding_id", "reference", "candidate"), FAULTS, ids=[f[2] for f in FAULTS]
)
def test_each_fault_planted_in_mindspeed_rl_is_named_first(
    verl: Path, mindspeed_rl: Path, line: str, instead: str, finding_id: str, reference, candidate
) -> None:
    files = [path for path in mindspeed_rl.rglob("*.yaml") if line in path.read_text("utf-8")]
    assert len(files) == 1
    text = files[0].read_text("utf-8")
    files[0].write_text(text.replace(line, instead, 1), encoding="utf-8")
    result = compared(verl, mindspeed_rl)
    errors = [f for f in result.findings if f.severity is Severity.ERROR]
    assert [f.id for f in errors] == [finding_id]
    assert (errors[0].reference, errors[0].candidate) == (reference, candidate)
    assert errors[0].why.zh and errors[0].fix.zh


def test_spelling_paths_logging_and_device_are_no_difference(verl: Path) -> None:
    candidate = with_overrides(
        verl,
        "trainer.device=npu",
        "trainer.logger=[console]",
        "trainer.project_name=other",
        "trainer.default_local_dir=/elsewhere",
        "trainer.save_freq=50",
        "data.train_files=/npu/data/rows.parquet",
        "actor_rollout_ref.model.path=/npu/ckpt/qwen2_5_7b",
        "actor_rollout_ref.actor.optim.lr='1.0e-06'",
        "actor_rollout_ref.rollout.dtype=torch.bfloat16",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.9",
        "data.dataloader_num_workers=0.0",
    )
    assert severe(compared(verl, candidate)) == {}


_HARMLESS = {
    "project_name": "elsewhere",
    "experiment_name": "npu-1",
    "default_local_dir": "/npu/checkpoints",
    "save_freq": 7,
    "device": "npu",
    "n_samples_to_log": 3,
    "save": "/npu/checkpoints",
    "log_interval": 3,
    "use_wandb": True,
    "wandb_project": "npu",
}


def respelled(value: object, key: str = "") -> str:
    """Write a value as flow YAML in another spelling, under other folders, logged elsewhere."""
    if key in _HARMLESS:
        value = _HARMLESS[key]
    if isinstance(value, dict):
        pairs = (f"{json.dumps(str(k))}: {respelled(v, str(k))}" for k, v in value.items())
        return "{" + ", ".join(reversed(list(pairs))) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(respelled(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"{value:.16e}" if math.isfinite(value) else f".{value}"
    if isinstance(value, str):
        moved = f"/npu/mount/{value.rpartition('/')[2]}" if value.startswith("/") else value
        return json.dumps(_DTYPES.get(moved, moved), ensure_ascii=False)
    return "null" if value is None else str(value)


_DTYPES = {"bfloat16": "torch.bfloat16", "bf16": "bfloat16", "fp32": "float32"}
REAL = (
    *(f"verl_configs/grpo_v0{version}/.hydra/config.yaml" for version in ("2", "3_a", "6", "7")),
    "mindspeed_rl/grpo_qwen25_7b_A3.yaml",
    "mindspeed_rl/ppo_qwen25_32b_A3.yaml",
    "mindspeed_rl/dapo_qwen25_32b_A3.yaml",
    "mindspeed_rl/old_2025-05/grpo_trainer_qwen25_7b.yaml",
)


@pytest.mark.parametrize("name", REAL)
def test_a_real_configuration_written_otherwise_gives_no_error_and_no_warning(
    name: str, corpus: Path, tmp_path: Path
) -> None:
    text = (corpus / name).read_text("utf-8")
    reference, candidate = tmp_path / "gpu.yaml", tmp_path / "npu.yaml"
    reference.write_text(text, encoding="utf-8")
    plain = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    assert isinstance(plain, dict)
    sections = (f"{key!s}: {respelled(value, str(key))}\n" for key, value in plain.items())
    candidate.write_text("".join(sections), encoding="utf-8")
    assert candidate.read_text("utf-8") != text
    result = compared(reference, candidate)
    assert severe(result) == {}
    assert result.status is RungStatus.ALIGNED


@pytest.mark.parametrize(
    ("override", "severity"),
    [
        ("algorithm.kl_ctrl.kl_coef=0.1", Severity.INFO),  # no KL in the reward
        ("algorithm.lam=0.5", Severity.INFO),  # GRPO has no lambda
        ("actor_rollout_ref.actor.data_loader_seed=7", Severity.INFO),  # nothing is shuffled
        ("actor_rollout_ref.rollout.enforce_eager=true", Severity.INFO),
        ("trainer.total_training_steps=400", Severity.INFO),  # constant learning rate
        ("actor_rollout_ref.rollout.val_kwargs.temperature=1.0", Severity.WARNING),
        ("data.dataloader_num_workers=8", Severity.ERROR),  # one permutation is thrown away
        ("actor_rollout_ref.actor.kl_loss_coef=0.01", Severity.ERROR),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", Severity.ERROR),
        ("data.shuffle=false", Severity.ERROR),
    ],
)
def test_the_rest_of_the_configuration_decides_how_much_a_difference_matters(
    verl: Path, override: str, severity: Severity
) -> None:
    candidate = with_overrides(verl, override)
    found = [f for f in compared(verl, candidate).findings if f.id != "config.notes"]
    assert [f.severity for f in found] == [severity]


def test_an_assumed_version_is_in_the_finding_that_depends_on_it(verl: Path) -> None:
    candidate = with_overrides(verl, "data.dataloader_num_workers=8")
    finding = compared(verl, candidate).findings[0]
    assert finding.id == "config.data.dataloader_num_workers"
    assert "version 0.9.0 or later is assumed" in finding.why.en


def test_a_key_that_switched_off_parts_alone_read_is_in_the_table_only(verl: Path) -> None:
    candidate = with_overrides(verl, "critic.optim.weight_decay=0.5")
    result = compared(verl, candidate)
    assert [f.id for f in result.findings if f.id != "config.notes"] == []
    rows = next(table.rows for table in result.tables if table.id == "config.compared")
    assert rows[0][:2] == ("critic.optim.weight_decay", "≠")


def test_an_unknown_key_is_shown_with_the_nearest_known_one(verl: Path) -> None:
    candidate = with_overrides(verl, "+actor_rollout_ref.rollout.temprature=0.7")
    result = compared(verl, candidate)
    assert severe(result) == {}
    row = next(table.rows for table in result.tables if table.id == "config.unmatched")[0]
    assert row[:4] == (
        "actor_rollout_ref.rollout.temprature",
        Text("candidate", "被测"),
        0.7,
        "actor_rollout_ref.rollout.temperature",
    )


def test_a_value_known_on_one_side_only_is_shown_and_not_judged(
    verl: Path, mindspeed_rl: Path
) -> None:
    (verl / "config.json").unlink()
    (mindspeed_rl / "model" / "qwen25_7b.yaml").write_text(
        "qwen25_7b:\n  hidden_size: 3584\n  norm_epsilon: 1e-5\n  num_layers: 28\n",
        encoding="utf-8",
    )
    result = compared(verl, mindspeed_rl)
    assert not any("rms_norm_eps" in finding.id for finding in result.findings)
    rows = next(table.rows for table in result.tables if table.id == "config.one_sided")
    assert ("model.rms_norm_eps", Text("candidate", "被测"), 1e-5) in {row[:3] for row in rows}


def test_a_run_without_configuration_says_how_to_record_it(verl: Path, tmp_path: Path) -> None:
    log = tmp_path / "log only" / "a.log"
    log.parent.mkdir()
    log.write_text("step:1 - critic/score/mean:0.5 - actor/lr:1e-06\n", encoding="utf-8")
    result = compared(verl, log.parent)
    assert result.status is RungStatus.MISSING
    assert result.missing[0].side == "candidate"
    assert ".hydra" in result.missing[0].how_to_record.en
    run = CliRunner().invoke(command, ["diff", str(verl), str(log.parent)])
    assert run.exit_code == 3


def test_the_command_speaks_chinese(verl: Path, mindspeed_rl: Path) -> None:
    run = CliRunner().invoke(
        command, ["diff", str(verl), str(mindspeed_rl), "--lang", "zh", "--fail-on", "info"]
    )
    assert run.exit_code == 1
    assert "  参考  " in run.stdout and "修改：" in run.stdout


def test_real_pairs_report_what_is_true(corpus: Path) -> None:
    configs = corpus / "verl_configs"
    result = compared(configs / "grpo_v03_a", configs / "grpo_v03_b")
    assert severe(result) == {
        "config.data.max_prompt_length": Severity.ERROR,
        "config.data.max_response_length": Severity.ERROR,
    }
