"""`align replay` into the real verl: what a captured run trained on, trained on again.

The engine of these runs is seeded otherwise, so a response that it generates is another one. Six
runs beside those of the captures, one of them on two ranks.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("transfer_queue", reason="verl's V1 trainer needs TransferQueue")

from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset

from align.core.rollout_record import RolloutRecord
from align.core.rung import Rung, RungStatus
from align.ladder import climb
from dumps.inject.drivers.verl_order import ordered_positions
from dumps.inject.drivers.verl_prompts import templating
from dumps.inject.launch import prepare
from dumps.inject.order_data import OrderData
from dumps.inject.plan import ReplayPlan
from dumps.inject.problem import ReplayRefused
from dumps.inject.replay import Replay
from dumps.readers import captured_step
from dumps.readers.data_set import read_data_set
from dumps.readers.row_hashes import brief_hashes, data_set_hash, row_hashes
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.frameworks.verl.runs import BIN, STEPS, TWO_RANKS, V0, Pair, Ran, start

OTHER_COEFFICIENT = "actor_rollout_ref.actor.kl_loss_coef=0.1"
OTHER_MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size=8"
# The captured runs have an agent loop of their own, and the engine on two ranks lacks a weight.
OTHER_RUNGS = {Rung.CONFIG, Rung.WEIGHT_SYNC}
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
def two_ranks_again(work: Path, two_ranks: Ran) -> Ran:
    return replay(work, "v1-two-replay", two_ranks.capture, *TWO_RANKS)


@pytest.fixture(scope="session")
def other_eps(work: Path) -> str:
    """Give the option that names a model whose RMSNorm adds another epsilon."""
    folder = work / "other-eps"
    shutil.copytree(work / "tiny/model", folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-6
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    return f"actor_rollout_ref.model.path={folder}"


@pytest.fixture(params=["v1", "v0", "two_ranks"])
def both(request: pytest.FixtureRequest) -> tuple[Ran, Ran]:
    """Give the captured run, and the one it was replayed into."""
    recorded = request.getfixturevalue(request.param)
    captured = recorded if isinstance(recorded, Ran) else recorded.captured
    return captured, request.getfixturevalue(f"{request.param}_again")


def rollouts(run: Ran, step: int) -> list[tuple]:
    rows = pq.read_table(run.capture / f"rollout/step={step:06d}.parquet").to_pylist()
    names = ("prompt_ids", "response_ids", "log_probs", "score", "dataset_index")
    return [tuple(row[name] for name in names) for row in rows]


def actors(run: Ran, step: int) -> list[str]:
    found = (run.capture / f"steps/{step:06d}").glob("actor-*.safetensors")
    return sorted(path.relative_to(run.capture).as_posix() for path in found)


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
        files = actors(captured, step)
        assert files and files == actors(again, step)
        for file in files:
            parts = [captured_step.read(run.capture / file).tensors for run in both]
            assert parts[0].keys() == parts[1].keys()
            assert all((parts[0][name] == parts[1][name]).all() for name in parts[0])


def test_each_of_two_ranks_has_its_part(two_ranks: Ran, two_ranks_again: Ran) -> None:
    for ran in (two_ranks, two_ranks_again):
        assert [file[-19:] for file in actors(ran, 1)] == [
            "actor-0.safetensors",
            "actor-1.safetensors",
        ]


def test_the_manifest_proves_it_row_by_row(both: tuple[Ran, Ran]) -> None:
    manifest = json.loads((both[1].capture / "align-run.json").read_text())
    proof = manifest["replay"]
    assert proof["holds"] and proof["recorded_sha256"] == proof["consumed_sha256"]
    assert (proof["steps"], proof["rows"], proof["identical"]) == (2, 64, 64)
    assert (proof["out_of_order"], proof["scores_differ"], proof["refused"]) == (0, 0, [])


PLANTED = [
    ("v1", "kl", "config.loss.kl_coef"),
    ("v1", "eps", "config.model.rms_norm_eps"),
    ("v0", "mini_batch", "config.actor.mini_batch_size"),
]


@pytest.mark.parametrize(("trainer", "planted", "named"), PLANTED)
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


def test_nothing_of_that_is_named_where_nothing_is_planted(both: tuple[Ran, Ran]) -> None:
    report = climb(*map(data, both))
    named = {finding.id for rung in report.rungs for finding in rung.findings}
    assert not named & {finding_id for _, _, finding_id in PLANTED}
    others = (RungStatus.DIVERGED, RungStatus.UNDECIDED)
    assert {rung.name for rung in report.rungs if rung.status in others} <= OTHER_RUNGS


def test_rows_of_an_order_file_are_numbers_in_verls_own_data_set(
    reference_runs: Path, tmp_path: Path
) -> None:
    tiny = reference_runs / "tiny_model_tokenizer_data"
    tokenizer = AutoTokenizer.from_pretrained(tiny / "model")
    settings = OmegaConf.create({"max_prompt_length": 64, "cache_dir": str(tmp_path)})
    own = RLHFDataset([str(tiny / "train.parquet")], tokenizer, settings)
    makes = templating(tokenizer, settings)
    for name, fits in (("train.parquet", True), ("test.parquet", False)):
        rows = read_data_set(tiny / name)
        hashes = row_hashes(rows)
        source = OrderData(name, len(rows), data_set_hash(hashes), brief_hashes(hashes))
        plan = ReplayPlan(tmp_path / name, sets_order=True)
        prepare(plan, [], [RolloutRecord(step=1, dataset_index=i) for i in (5, 2)], None, source)
        if fits:
            assert ordered_positions(Replay(plan), own, makes) == [5, 2]
        else:
            with pytest.raises(ReplayRefused, match=f"{len(rows)} rows there, 64 here, and row 0"):
                ordered_positions(Replay(plan), own, makes)
