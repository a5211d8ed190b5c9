"""`align replay` into the real verl: what a captured run trained on, trained on again.

The engine of these runs is seeded otherwise, so a response that it generates is another one. Seven
runs beside those of the captures, two of them on two ranks.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("transfer_queue", reason="verl's V1 trainer needs TransferQueue")

from align.core.verdict import VerdictStatus
from align.ladder import climb
from dumps.readers import captured_step
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.frameworks.verl.runs import BIN, STEPS, TWO_RANKS, V0, Pair, Ran, start

OTHER_COEFFICIENT = "actor_rollout_ref.actor.kl_loss_coef=0.1"
OTHER_MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size=8"
OTHER_ENGINE = {"HF_CPU_SEED": "7", "XMOD": ",without_trl"}


def replay(work: Path, name: str, recorded: Path, *overrides: str) -> Ran:
    """Replay into a run that generates with verl's own agent loop and buffer."""
    capture = work / f"{name}-capture"
    prefix = f"{BIN / 'align'} replay --rollouts {recorded} -o {capture} --"
    done = start(work, name, prefix, list(overrides), OTHER_ENGINE)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return Ran(work / name, capture)


@pytest.fixture(scope="session")
def v1_again(work: Path, v1: Pair) -> Ran:
    return replay(work, "v1-replay", v1.captured.capture)


@pytest.fixture(scope="session")
def v0_again(work: Path, v0: Pair) -> Ran:
    return replay(work, "v0-replay", v0.captured.capture, V0)


@pytest.fixture(scope="session")
def v1_two_ranks(work: Path, two_ranks: Ran) -> tuple[Ran, Ran]:
    """Give a captured run, and the one it was replayed into, on two ranks of FSDP2."""
    return two_ranks, replay(work, "v1-two-replay", two_ranks.capture, *TWO_RANKS)


@pytest.fixture(scope="session")
def other_eps(work: Path) -> str:
    """Give the option that names a model whose RMSNorm adds another epsilon."""
    folder = work / "other-eps"
    shutil.copytree(work / "tiny/model", folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-6
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    return f"actor_rollout_ref.model.path={folder}"


@pytest.fixture(params=["v1", "v0", "v1_two_ranks"])
def both(request: pytest.FixtureRequest) -> tuple[Ran, Ran]:
    """Give the captured run, and the one it was replayed into."""
    if request.param == "v1_two_ranks":
        pair: tuple[Ran, Ran] = request.getfixturevalue(request.param)
        return pair
    captured = request.getfixturevalue(request.param).captured
    return captured, request.getfixturevalue(f"{request.param}_again")


def rollouts(run: Ran, step: int) -> list[tuple]:
    rows = pq.read_table(run.capture / f"rollout/step={step:06d}.parquet").to_pylist()
    names = ("prompt_ids", "response_ids", "log_probs", "score", "dataset_index")
    return [tuple(row[name] for name in names) for row in rows]


def data(run: Ran) -> RunData:
    return RunData(discover([run.capture]))


def test_the_same_tokens_are_trained_on_in_the_same_order(both: tuple[Ran, Ran]) -> None:
    captured, again = both
    for step in STEPS:
        assert len(rollouts(captured, step)) == 32
        assert rollouts(again, step) == rollouts(captured, step)


def test_losses_and_gradients_are_bitwise_the_same(both: tuple[Ran, Ran]) -> None:
    captured, again = both
    first = captured.numerics()[1]
    assert first["actor/grad_norm"] > 0 and first["actor/pg_loss"] != 0
    assert again.numerics() == captured.numerics()
    for step in STEPS:
        folder = f"steps/{step:06d}"
        files = sorted(path.name for path in (captured.capture / folder).iterdir())
        assert files == sorted(path.name for path in (again.capture / folder).iterdir())
        for file in files:
            parts = [captured_step.read(run.capture / folder / file).tensors for run in both]
            assert parts[0].keys() == parts[1].keys()
            assert all((parts[0][name] == parts[1][name]).all() for name in parts[0])


def test_each_of_two_ranks_is_captured(v1_two_ranks: tuple[Ran, Ran]) -> None:
    for ran in v1_two_ranks:
        ranks = [path.name for path in (ran.capture / "steps/000001").iterdir()]
        assert sorted(ranks) == ["actor-0.safetensors", "actor-1.safetensors"]


def test_the_manifest_proves_it_row_by_row(both: tuple[Ran, Ran]) -> None:
    manifest = json.loads((both[1].capture / "align-run.json").read_text())
    proof = manifest["replay"]
    assert proof["holds"] and proof["recorded_sha256"] == proof["consumed_sha256"]
    assert (proof["steps"], proof["rows"], proof["identical"]) == (2, 64, 64)
    assert (proof["out_of_order"], proof["scores_differ"], proof["refused"]) == (0, 0, [])


@pytest.mark.parametrize(
    ("trainer", "planted", "named"),
    [
        ("v1", "kl", "config.loss.kl_coef"),
        ("v1", "eps", "config.model.rms_norm_eps"),
        ("v0", "mini_batch", "config.actor.mini_batch_size"),
    ],
)
def test_a_planted_difference_is_the_first_thing_a_report_names(
    trainer: str, planted: str, named: str, request: pytest.FixtureRequest, work: Path
) -> None:
    overrides = {
        "kl": lambda: OTHER_COEFFICIENT,
        "eps": lambda: request.getfixturevalue("other_eps"),
        "mini_batch": lambda: OTHER_MINI_BATCH,
    }[planted]()
    captured = request.getfixturevalue(trainer).captured
    again = request.getfixturevalue(f"{trainer}_again")
    version = [V0] if trainer == "v0" else []
    other = replay(work, f"{trainer}-{planted}", captured.capture, overrides, *version)
    assert rollouts(other, 1) == rollouts(again, 1)
    assert climb(data(again), data(other)).verdict.finding_id == named


@pytest.mark.parametrize("trainer", ["v1", "v0"])
def test_a_replay_without_a_difference_is_aligned(
    trainer: str, request: pytest.FixtureRequest
) -> None:
    captured = request.getfixturevalue(trainer).captured
    again = request.getfixturevalue(f"{trainer}_again")
    assert climb(data(captured), data(again)).verdict.status is VerdictStatus.ALIGNED
