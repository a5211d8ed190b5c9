"""The stack records what each update computes with, and the referee finds it as declared."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the bundled stack trains with torch")
pytest.importorskip("transformers", reason="the bundled stack trains with transformers")

from align.config.normalise import effective
from align.core.finding import Side
from align.referee.examine import Examined, examine
from align.referee.recompute import NORM
from align.referee.referee import rule
from align.referee.update import updates_of
from align.stack.faults.registry import fault_named
from align.stack.pipeline import Pipeline
from align.stack.train import train
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.stack.tiny_run import tiny

_ACTOR = "actor_rollout_ref.actor"
TWO_UPDATES = (f"{_ACTOR}.ppo_mini_batch_size=2", f"{_ACTOR}.ppo_micro_batch_size_per_gpu=2")
SETTINGS = {
    "grpo": TWO_UPDATES,
    "two epochs, shuffled": (*TWO_UPDATES, f"{_ACTOR}.ppo_epochs=2", f"{_ACTOR}.shuffle=true"),
    "entropy, sequence mean": (
        f"{_ACTOR}.entropy_coeff=0.01",
        f"{_ACTOR}.loss_agg_mode=seq-mean-token-mean",
    ),
    "gspo": (*TWO_UPDATES, f"{_ACTOR}.policy_loss.loss_mode=gspo"),
    "rloo, KL in the reward, importance weights": (
        *("algorithm.adv_estimator=rloo", "algorithm.use_kl_in_reward=true"),
        *("algorithm.rollout_correction.rollout_is=token", *TWO_UPDATES),
    ),
    "ppo": ("stack.algorithm=ppo", *TWO_UPDATES),
    "dapo": ("stack.algorithm=dapo", *TWO_UPDATES),
    "MindSpeed-RL's definitions": ("stack.definitions=mindspeed_rl", *TWO_UPDATES),
    "bfloat16": ("stack.numerics.profile=bfloat16", *TWO_UPDATES),
}


def trained(folder: Path, *overrides: str, fault: str | None = None) -> RunData:
    change = fault_named(fault).change if fault else None
    train(tiny(*overrides), folder, change(Pipeline()) if change else None)
    return RunData(discover([folder]))


def examined(run: RunData) -> Examined:
    found = examine(Side.CANDIDATE, run, effective(run.configs, run.run.manifest))
    assert isinstance(found, Examined)
    return found


@pytest.mark.parametrize("overrides", SETTINGS.values(), ids=list(SETTINGS))
def test_every_link_of_every_algorithm_is_as_declared(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    run = trained(tmp_path / "run", *overrides)
    assert not examined(run).misfits
    differing = [x.name for s in (1, 2, 3) for x in rule(run, s).links if x.verdict == "differs"]
    assert differing == []


@pytest.mark.parametrize(
    ("fault", "finding"), [("micro_batch_mean", "loss.aggregation"), ("kl_sign", "loss.kl_sign")]
)
def test_a_planted_loss_is_named_within_three_steps(
    tmp_path: Path, fault: str, finding: str
) -> None:
    run = trained(tmp_path / "run", *TWO_UPDATES, f"{_ACTOR}.kl_loss_coef=0.5", fault=fault)
    cause = examined(run).cause
    assert cause is not None and cause.id == finding


def test_updates_visit_every_row_once_an_epoch_in_numbered_micro_batches(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *TWO_UPDATES)
    first, second = updates_of(run, 1)
    assert (first.rows.tolist(), second.rows.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert first.micro_batches.tolist() == [0, 0, 1, 1]
    assert first.log_probs.equal(first.old_log_probs)  # the first update is on policy
    assert not second.log_probs.equal(second.old_log_probs)
    assert first.norm_of_gradients == pytest.approx(first.reported[NORM], rel=1e-5)
