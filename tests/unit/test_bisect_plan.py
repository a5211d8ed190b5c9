"""Every setting that differs between two runs becomes a knob in the candidate's keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from align.bisect.config_knobs import config_knobs
from align.bisect.read_plan import read_plan
from align.bisect.runs import configuration
from align.cli.main import cli
from align.core.config_value import EffectiveConfig
from align.core.errors import RunError

VERL = """\
algorithm: {{adv_estimator: grpo}}
actor_rollout_ref:
  actor: {{kl_loss_coef: {kl}, use_kl_loss: true, optim: {{lr: {lr}, betas: [0.9, {beta2}]}}}}
  rollout: {{temperature: {temperature}, n: 8}}
data: {{train_batch_size: 64, our_new_key: {ours}}}
trainer: {{total_training_steps: 100, experiment_name: {name}}}
"""
MINDSPEED = """\
megatron_training: {global_batch_size: 64, train_iters: 100}
actor_config: {lr: 1.0e-6, adam_beta2: 0.999}
rl_config: {kl_coef: 0.01, adv_estimator: group_norm, n_samples_per_prompt: 8}
generate_config: {sampling_config: {temperature: 0.2}}
"""
REFERENCE = {"kl": 0.001, "lr": 1e-6, "beta2": 0.999, "temperature": 1.0, "ours": 3, "name": "a"}
CANDIDATE = {"kl": 0.01, "lr": 1e-6, "beta2": 0.95, "temperature": 0.7, "ours": 4, "name": "b"}


def test_keys_of_one_framework_are_knobs_as_they_are_written(tmp_path: Path) -> None:
    knobs, _ = config_knobs(*both(tmp_path))
    assert {knob.name: knob.values for knob in knobs} == {
        "actor_rollout_ref.actor.kl_loss_coef": (0.001, 0.01),
        "actor_rollout_ref.actor.optim.betas": ((0.9, 0.999), (0.9, 0.95)),
        "actor_rollout_ref.rollout.temperature": (1.0, 0.7),
        "data.our_new_key": (3, 4),
    }


def test_equal_configurations_give_no_knob(tmp_path: Path) -> None:
    verl(tmp_path / "ref", REFERENCE)
    verl(tmp_path / "cand", REFERENCE)
    assert config_knobs(configuration(tmp_path / "ref"), configuration(tmp_path / "cand"))[0] == ()


def test_between_frameworks_the_reference_is_written_in_the_candidates_keys(
    tmp_path: Path,
) -> None:
    verl(tmp_path / "ref", REFERENCE)
    (tmp_path / "cand").mkdir()
    (tmp_path / "cand" / "grpo.yaml").write_text(MINDSPEED)
    sides = configuration(tmp_path / "ref"), configuration(tmp_path / "cand")
    values = {knob.name: knob.values for knob in config_knobs(*sides)[0]}
    assert values["generate_config.sampling_config.temperature"] == (1.0, 0.2)
    assert not any(name.startswith(("actor_rollout_ref", "trainer", "data.")) for name in values)


def test_a_plan_from_two_runs_reads_back_as_the_same_knobs(tmp_path: Path) -> None:
    sides = both(tmp_path)
    out = tmp_path / "sub" / "plan.yaml"
    words = ["bisect", "plan", str(tmp_path / "ref"), str(tmp_path / "cand"), "-o", str(out)]
    result = CliRunner().invoke(cli, [*words, "--", "bash", "train.sh", "{overrides}"])
    assert result.exit_code == 0, result.output
    plan = read_plan(out)
    assert plan.command == "bash train.sh {overrides}"
    assert plan.override == "++{key}={value}"  # verl reads overrides with Hydra
    found = {knob.name: knob.values for knob in plan.knobs}
    assert found == {knob.name: knob.values for knob in config_knobs(*sides)[0]}
    again = CliRunner().invoke(cli, [*words, "--", "bash", "train.sh"])
    assert isinstance(again.exception, RunError)


def test_a_plan_can_name_the_runs_and_leave_keys_out(tmp_path: Path) -> None:
    both(tmp_path)
    plan = {
        "command": "run {overrides}",
        "from": {"reference": "ref", "candidate": "cand"},
        "knobs": [{"environment": "VLLM_USE_V1", "reference": "0", "candidate": "1"}],
        "ignore": ["data.our_new_key", "actor_rollout_ref.actor.optim.betas"],
    }
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps(plan))
    assert [knob.name for knob in read_plan(path).knobs] == [
        "VLLM_USE_V1",
        "actor_rollout_ref.actor.kl_loss_coef",
        "actor_rollout_ref.rollout.temperature",
    ]


def test_a_run_without_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "data": {"actor/lr": 1e-6}}\n')
    with pytest.raises(RunError, match="no configuration"):
        configuration(tmp_path / "run")


def both(folder: Path) -> tuple[EffectiveConfig, EffectiveConfig]:
    verl(folder / "ref", REFERENCE)
    verl(folder / "cand", CANDIDATE)
    return configuration(folder / "ref"), configuration(folder / "cand")


def verl(folder: Path, values: dict[str, object]) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text(VERL.format(**values))
