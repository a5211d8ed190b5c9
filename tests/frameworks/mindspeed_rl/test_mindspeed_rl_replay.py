"""`align replay` on the real MindSpeed-RL: its hybrid worker trains on another run's responses.

The second run's rollout engine would answer otherwise, so what its dock holds is the record.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="drivers look at torch's tensors")
pytest.importorskip("megatron.core", reason="Megatron-core is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from dumps.inject.plan import ReplayPlan
from dumps.inject.proof import prove
from dumps.readers import captured_step
from tests.frameworks.mindspeed_rl.runs import SOURCE, Ran, run, start
from tests.frameworks.mindspeed_rl.tiny_run import PROMPTS, SAMPLES, STEPS

pytestmark = pytest.mark.skipif(
    SOURCE is None, reason="needs a checkout of MindSpeed-RL (set MINDSPEED_RL_SRC)"
)
OTHERWISE = {"ANSWERS_SHIFTED_BY": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mindspeed_rl_replay")


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Ran:
    return run(folder, "recorded", 1, "capture")


@pytest.fixture(scope="module")
def replayed(folder: Path, recorded: Ran) -> Ran:
    return run(folder, "replayed", 1, "replay", "--rollouts", str(recorded.capture), **OTHERWISE)


def test_the_dock_holds_the_recorded_responses_in_every_step(recorded: Ran, replayed: Ran) -> None:
    for one, other in zip(recorded.ranks[0], replayed.ranks[0], strict=True):
        for column in ("responses", "input_ids"):
            rows = zip(one["dock"][column], other["dock"][column], strict=True)
            assert all(a.tolist() == b.tolist() for a, b in rows)


def test_losses_and_gradients_are_bitwise_those_of_the_recorded_run(
    recorded: Ran, replayed: Ran
) -> None:
    for step in range(1, STEPS + 1):
        parts = [
            captured_step.read(each.capture / f"steps/{step:06d}/actor-0.safetensors").tensors
            for each in (recorded, replayed)
        ]
        assert parts[0].keys() == parts[1].keys()
        assert all((parts[0][name] == parts[1][name]).all() for name in parts[0])


def test_the_proof_names_every_row(replayed: Ran) -> None:
    proof = prove(ReplayPlan(replayed.capture))
    assert (proof.identical, proof.mismatches, proof.holds) == (
        STEPS * PROMPTS * SAMPLES,
        0,
        True,
    )


def test_without_the_record_of_a_step_the_run_is_refused(folder: Path, recorded: Ran) -> None:
    one_step = folder / "one-step"
    (one_step / "rollout").mkdir(parents=True)
    (source,) = (recorded.capture / "rollout").glob("*/step=000001.parquet")
    (one_step / "rollout" / source.name).write_bytes(source.read_bytes())
    options = ["replay", "--rollouts", str(one_step), "-o", str(folder / "refused")]
    done = start(folder / "refused-out", 1, options, OTHERWISE)
    assert done.returncode == 2
    assert "1 steps of this run are not recorded: 2" in done.stderr
