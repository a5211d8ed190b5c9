"""The next experiment is the cheapest that tells something, spelled for the user's framework."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from align.cli.main import cli
from align.core.finding import Finding, Mechanism, Severity, Strength, Symptom
from align.core.rung import Rung
from align.core.text import Text
from align.core.verdict import VerdictStatus
from align.frameworks.config_table import config_tables
from align.frameworks.mindspeed_rl_config import user_key
from align.next.choose import choose, plans_for
from align.next.commands import side_of
from align.next.situation import Situation
from align.next.spelling import DIALECTS
from dumps.store.discover import discover
from dumps.store.run_data import RunData

EXAMPLES = Path(__file__).parents[2] / "align" / "examples"
WORDS = Text("x", "某")


def finding(
    metric: str = "actor/grad_norm", rung: Rung = Rung.BACKWARD, step: int = 1, cause: bool = False
) -> Finding:
    return Finding(
        id="curves.x",
        rung=Rung.CURVES,
        severity=Severity.ERROR,
        title=WORDS,
        reference=None,
        candidate=None,
        evidence=(),
        why=WORDS,
        fix=WORDS,
        mechanism=Mechanism(Rung.LOSS, Strength.SEMANTIC) if cause else None,
        symptom=None if cause else Symptom(metric, rung, step, 1, False),
    )


UNKNOWN = Situation(
    status=VerdictStatus.DIVERGED,
    cause=None,
    fix_settings=(),
    symptom=finding(),
    missing=(Rung.FORWARD,),
    free=(),
    harmless=(),
    blameless=(),
    probs_diff=None,
    frozen=False,
    one_token=False,
    replayed=False,
    has_rollouts=False,
    step_s=60.0,
    last_step=500,
)


def chosen(**changes: object) -> str | None:
    situation = dataclasses.replace(UNKNOWN, **changes)  # type: ignore[arg-type]
    side = side_of(RunData(discover([EXAMPLES / "reference"])))
    experiment = choose(situation, side, side).chosen
    return experiment.plan.id if experiment else None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # inputs unequal, loss or gradient other at step 1: train on the same rollouts
        ({}, "replay_step_1"),
        ({"has_rollouts": True}, "replay_step_1"),
        # the same rollouts already: record the step
        ({"replayed": True}, "capture_step_1"),
        # everything of the step is recorded, the difference comes later: chance or not?
        ({"replayed": True, "missing": (), "symptom": finding(step=300)}, "repeat_reference"),
        # responses differ at step 1
        ({"symptom": finding("response_length/mean", Rung.ROLLOUT)}, "greedy"),
        # log_prob difference above 0.01: lr = 0, then one token
        ({"probs_diff": 0.02, "has_rollouts": False, "replayed": True, "missing": ()}, "lr_zero"),
        ({"probs_diff": 0.02, "frozen": True}, "max_response_length_1"),
        ({"probs_diff": 0.004, "replayed": True, "missing": ()}, None),
        ({"status": VerdictStatus.ALIGNED}, None),
        ({"cause": finding(cause=True)}, "confirm_fix"),
    ],
)
def test_the_decision_tree(changes: dict[str, object], expected: str | None) -> None:
    assert chosen(**changes) == expected


def test_the_cheapest_comes_first_and_a_repeat_costs_a_whole_run() -> None:
    side = side_of(RunData(discover([EXAMPLES / "reference"])))
    situation = dataclasses.replace(UNKNOWN, symptom=finding(step=200), probs_diff=0.5)
    advice = choose(situation, side, side)
    assert advice.chosen is not None
    costs = [e.cost.num_steps for e in (advice.chosen, *advice.others)]
    assert costs == sorted(costs)
    assert (advice.others[-1].plan.id, costs[-1]) == ("repeat_reference", 500)
    assert advice.chosen.cost.seconds == 60 * costs[0]


@pytest.mark.parametrize("framework", sorted(DIALECTS))
def test_every_key_is_the_one_the_frameworks_own_table_has_for_the_field(framework: str) -> None:
    tables = config_tables(framework)
    assert tables is not None
    known = dict(tables.keys)
    for field, keys in DIALECTS[framework].keys.items():
        fields = {known.get(_table_key(framework, key), field) for key in keys}
        # TRL has one seed for weights, order and sampling
        assert field in fields or (framework, field) == ("trl", "rollout.seed"), (field, keys)
        if framework != "trl":  # its table has only what changes numbers
            assert all(_table_key(framework, key) in known for key in keys), keys


def _table_key(framework: str, key: str) -> str:
    section, _, name = key.partition(".")
    merged = framework == "mindspeed_rl" and section in ("actor_config", "megatron_training")
    return f"actor.{name}" if merged else key


def test_megatrons_keys_are_written_where_mindspeed_rl_reads_them() -> None:
    assert user_key("actor.train_iters") == "megatron_training.train_iters"


def test_the_candidates_own_command_is_kept_with_its_marks_and_nothing_is_set_twice() -> None:
    side = side_of(RunData(discover([EXAMPLES / "candidate"])))
    (plan,) = (p for p in plans_for(dataclasses.replace(UNKNOWN, has_rollouts=True)))
    advice = choose(dataclasses.replace(UNKNOWN, has_rollouts=True), side, side)
    assert advice.chosen is not None and plan.id == advice.chosen.plan.id
    replay, report = advice.chosen.commands
    words = replay.replace("\\\n", " ").split()
    assert words[:2] == ["align", "replay"] and "verl.trainer.main_ppo" in words
    assert "+actor_rollout_ref.model.override_config.attn_implementation=eager" in words
    settings = [w.lstrip("+'").partition("=")[0] for w in words if "=" in w]
    assert len(settings) == len(set(settings))
    assert "trainer.total_training_steps=1" in words
    # the experiment writes nothing into the folders of the run, and resumes nothing of it
    assert not any("/data/runs/candidate" in word for word in words)
    assert report.startswith("align report")


def test_mindspeed_rl_gets_its_own_program_and_keys(corpus: Path) -> None:
    yaml = next(p for p in sorted((corpus / "mindspeed_rl").rglob("*.yaml")) if "grpo" in p.name)
    side = side_of(RunData(discover([yaml])))
    advice = choose(
        dataclasses.replace(UNKNOWN, probs_diff=0.1, replayed=True, missing=()), side, side
    )
    assert advice.chosen is not None
    command = advice.chosen.commands[0].replace("\\\n ", "")
    assert f"python cli/train_grpo.py --config-name {yaml.stem}" in command
    assert "actor_config.lr=0 actor_config.min_lr=0" in command


def test_a_known_cause_is_confirmed_with_the_references_value() -> None:
    arguments = ["next", str(EXAMPLES / "reference"), str(EXAMPLES / "candidate"), "--json"]
    document = json.loads(CliRunner().invoke(cli, arguments).stdout)
    assert document["next"]["id"] == "confirm_fix"
    assert "actor_rollout_ref.rollout.temperature=1.0" in document["next"]["commands"][0]


def test_a_clean_twin_is_never_given_a_cause_to_confirm() -> None:
    arguments = ["next", str(EXAMPLES / "reference"), str(EXAMPLES / "repeat"), "--json"]
    document = json.loads(CliRunner().invoke(cli, arguments).stdout)
    assert document["next"]["id"] != "confirm_fix"


def test_one_run_alone_is_captured() -> None:
    result = CliRunner().invoke(cli, ["next", str(EXAMPLES / "repeat"), "--lang", "zh"])
    assert result.exit_code == 0
    assert "capture_step_1" in result.stdout and "只有一次运行" in result.stdout


def test_real_near_repeats_are_asked_to_train_on_the_same_rollouts(corpus: Path) -> None:
    logs = [str(corpus / "verl_logs" / f"grpo_npu_sync_repeat_{side}.txt") for side in "ab"]
    document = json.loads(CliRunner().invoke(cli, ["next", *logs, "--json"]).stdout)
    assert "actor/kl_loss" in document["situation"]["en"]
    assert document["next"]["id"] == "replay_step_1"
    assert document["then"][-1]["id"] == "repeat_reference"
    assert any("kept in host memory" in text["en"] for text in document["harmless"])
    assert "YOUR_COMMAND" in document["note"]["en"]
