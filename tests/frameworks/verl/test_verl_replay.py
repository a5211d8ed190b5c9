"""`align replay` into the real verl: what a captured run trained on, trained on again.

The engine of these runs is seeded otherwise, so a response that it generates is another one. V1 and
V0 trainer, on one rank and on two.
"""

from __future__ import annotations

import json
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
from tests.frameworks.verl.runs import PLANTED, SETTINGS, STEPS, Ran, Runs

# The captured runs have an agent loop of their own, and the engine of one lacks a weight.
OTHER_RUNGS = {Rung.CONFIG, Rung.WEIGHT_SYNC}
NAMED = {
    "kl": "config.loss.kl_coef",
    "eps": "config.model.rms_norm_eps",
    "mini_batch": "config.actor.mini_batch_size",
}
NEEDS = (
    *(f"{setting}_{what}" for what in ("captured", "again") for setting in SETTINGS),
    *(f"{setting}_{fault}" for setting, fault in PLANTED),
)


@pytest.fixture(params=SETTINGS)
def both(runs: Runs, request: pytest.FixtureRequest) -> tuple[Ran, Ran]:
    """Give the captured run, and the one it was replayed into."""
    return runs.get(f"{request.param}_captured"), runs.get(f"{request.param}_again")


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


@pytest.mark.parametrize("setting", ["v1_two", "v0_two"])
@pytest.mark.parametrize("what", ["captured", "again"])
def test_each_of_two_ranks_has_its_part(runs: Runs, setting: str, what: str) -> None:
    files = [Path(file).name for file in actors(runs.get(f"{setting}_{what}"), 1)]
    assert files == ["actor-0.safetensors", "actor-1.safetensors"]


def test_the_manifest_proves_it_row_by_row(both: tuple[Ran, Ran]) -> None:
    manifest = json.loads((both[1].capture / "align-run.json").read_text())
    proof = manifest["replay"]
    assert proof["holds"] and proof["recorded_sha256"] == proof["consumed_sha256"]
    assert (proof["steps"], proof["rows"], proof["identical"]) == (2, 64, 64)
    assert (proof["out_of_order"], proof["scores_differ"], proof["refused"]) == (0, 0, [])


@pytest.mark.parametrize(("setting", "planted"), PLANTED)
def test_a_planted_difference_is_the_first_thing_a_report_names(
    runs: Runs, setting: str, planted: str
) -> None:
    again, other = runs.get(f"{setting}_again"), runs.get(f"{setting}_{planted}")
    assert rollouts(other, 1) == rollouts(again, 1)
    assert climb(data(again), data(other)).verdict.finding_id == NAMED[planted]


def test_nothing_of_that_is_named_where_nothing_is_planted(both: tuple[Ran, Ran]) -> None:
    report = climb(*map(data, both))
    named = {finding.id for rung in report.rungs for finding in rung.findings}
    assert not named & {*NAMED.values()}
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
