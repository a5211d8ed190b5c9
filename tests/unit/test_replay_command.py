"""`align replay` from the command line, and into the bundled stack."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch", reason="the stack computes with it")

from align.cli.main import cli
from align.core.errors import AlignError
from align.core.rollout_record import RolloutRecord
from align.frameworks.stack_replay import HOOKS
from align.rollout.replayable import MARK, read_order, read_replayable
from align.stack import train as stack
from dumps.capture.plan import BY_DEFAULT, CapturePlan, What, read_plan, write_plan
from dumps.inject.drivers import stack as driver
from dumps.inject.install import put_in
from dumps.inject.launch import prepare, prompts_in_order
from dumps.inject.order_data import OrderData
from dumps.inject.plan import ReplayPlan, Source
from dumps.inject.problem import ReplayRefused
from dumps.inject.proof import Proof, prove
from dumps.inject.recorded import step_of
from dumps.inject.replay import Replay
from tests.stack.tiny_run import tiny

STEPS = 2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the stack, which records its rollouts by itself."""
    folder = tmp_path_factory.mktemp("recorded")
    stack.train(tiny(f"trainer.total_training_steps={STEPS}"), folder / "run")
    return folder / "run"


class Replaying:
    """Runs the stack on recorded rollouts, in this process."""

    def __init__(self, folder: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.recorded, self._patch = folder, recorded, monkeypatch
        self.rows: list[RolloutRecord] = list(read_replayable(recorded, None, None).rows)
        self.order_data: OrderData | None = None

    def run(self, *overrides: str, **plan: Any) -> Path:
        made = ReplayPlan(self.folder / "replay", **plan)
        order = prompts_in_order(read_order(self.recorded).rows) if made.sets_order else []
        prepare(made, self.rows, order, None, self.order_data)
        self.plan = made
        self._patch.setattr(driver, "_checked", set())
        with self._patch.context() as patch:
            patch.setattr(stack, "train_step", stack.train_step)
            put_in(Replay(made), stack, HOOKS[0])
            out = self.folder / "out"
            settings = tiny(f"trainer.total_training_steps={STEPS}", *overrides)
            stack.train(settings, out, warmup_cache=self.recorded / "warmup")
        return out

    @property
    def proof(self) -> Proof:
        return prove(self.plan)


@pytest.fixture
def replaying(tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Replaying:
    return Replaying(tmp_path, recorded, monkeypatch)


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def rollouts(run: Path) -> list[bytes]:
    return [(run / f"rollout/{step}.jsonl").read_bytes() for step in range(1, STEPS + 1)]


def test_a_replay_into_the_same_settings_is_the_same_run(replaying: Replaying) -> None:
    out = replaying.run()
    assert rollouts(out) == rollouts(replaying.recorded)
    assert metrics(out) == metrics(replaying.recorded)
    assert replaying.proof.holds and replaying.proof.identical == 16


def test_a_candidate_that_would_sample_otherwise_trains_on_the_recorded_tokens(
    replaying: Replaying,
) -> None:
    other = "actor_rollout_ref.rollout.seed=9"
    alone, steps = replaying.folder / "alone", f"trainer.total_training_steps={STEPS}"
    stack.train(tiny(steps, other), alone, warmup_cache=replaying.recorded / "warmup")
    assert rollouts(alone)[0] != rollouts(replaying.recorded)[0]
    out = replaying.run(other)
    assert metrics(out) == metrics(replaying.recorded)
    assert replaying.proof.holds


def test_another_row_order_is_refused_and_can_be_set(replaying: Replaying) -> None:
    with pytest.raises(ReplayRefused, match="prompts are not recorded"):
        replaying.run("data.seed=3")
    out = replaying.run("data.seed=3", sets_order=True)
    assert metrics(out) == metrics(replaying.recorded)
    assert replaying.proof.holds and not replaying.proof.out_of_order


def test_rows_by_number_need_a_data_set_that_can_be_compared(replaying: Replaying) -> None:
    replaying.order_data = OrderData("train.parquet", 64, "0" * 32)
    with pytest.raises(ReplayRefused, match=r"data set cannot be read to compare it .*arithmetic"):
        replaying.run(sets_order=True)


def test_changed_n_is_refused(replaying: Replaying) -> None:
    with pytest.raises(ReplayRefused, match="n has changed"):
        replaying.run("actor_rollout_ref.rollout.n=4")


def test_a_missing_step_is_refused_or_generated_and_counted(replaying: Replaying) -> None:
    replaying.rows = [row for row in replaying.rows if row.step == 1]
    with pytest.raises(ReplayRefused, match="1 steps of this run are not recorded: 2"):
        replaying.run()
    replaying.run(allows_missing=True)
    proof = replaying.proof
    assert (proof.identical, proof.generated, proof.holds) == (8, 8, True)


def test_a_group_that_dapo_dropped_is_refused_with_the_way_out(replaying: Replaying) -> None:
    """Several generations a step: the recorded groups alone would not be enough."""
    dapo = ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=3")
    with pytest.raises(ReplayRefused, match="only the groups that stayed are recorded; pass --ord"):
        replaying.run(*dapo)


def test_rewards_are_computed_anew_or_taken_as_recorded(replaying: Replaying) -> None:
    replaying.rows = [replace(row, score=5.0) for row in replaying.rows]
    anew = replaying.run()
    assert metrics(anew) == metrics(replaying.recorded)
    assert replaying.proof.scores_differ == 16
    taken = replaying.run(rewards=Source.RECORDED)
    assert {line["data"]["critic/score/mean"] for line in metrics(taken)} == {5.0}
    assert replaying.proof.scores_differ == 0


def test_rows_recorded_as_text_are_rebuilt_and_each_is_marked(
    replaying: Replaying, tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for step in range(1, STEPS + 1):
        lines = (replaying.recorded / f"rollout/{step}.jsonl").read_text().splitlines()
        kept = ("input", "output", "gts", "score", "step", "finish_reason")
        rows = [{k: row[k] for k in kept} for row in map(json.loads, lines)]
        (texts / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(AlignError, match="recorded as text alone"):
        read_replayable(texts, None, None)
    rebuilt = read_replayable(texts, replaying.recorded / "tokenizer", 6)
    assert rebuilt.marks["exact"] == 0 and sum(rebuilt.marks.values()) == 16
    sure = [r for r in rebuilt.rows if r.extras[MARK] == "rebuilt"]
    by_text = {(r.prompt, r.response): r.response_ids for r in replaying.rows}
    assert sure and {type(by_text[r.prompt, r.response]) for r in sure} == {tuple}
    replaying.rows = list(rebuilt.rows)
    with pytest.raises(ReplayRefused, match="rows without them are recorded"):
        replaying.run()


def test_rollouts_that_verl_saved_or_dumped_are_whole_groups(reference_runs: Path) -> None:
    """Saved as tensors by V1 and V0, and V1's text, whose uid is one a response."""
    tokenizer = reference_runs / "tiny_model_tokenizer_data" / "model"
    for name in ("skip_rollout_tq", "skip_rollout_v0", "v091_v1_fsdp2/rollout"):
        rows = read_replayable(reference_runs / name, tokenizer, 16).rows
        first = [row for row in rows if row.step == 1]
        assert [len(group.rows) for group in step_of(1, first).groups] == [4] * 8


def test_an_order_file_of_align_data_is_read(tmp_path: Path) -> None:
    path = tmp_path / "order.jsonl"
    header = {"kind": "row_order", "schema_version": 1}
    lines = [header, {"step": 1, "rows": [8, 5]}, {"step": 2, "rows": [0, 8]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = prompts_in_order(read_order(path).rows)
    assert [(r.step, r.dataset_index) for r in rows] == [(1, 8), (1, 5), (2, 0), (2, 8)]


def align(*arguments: Any) -> Result:
    """Call `align`; what it cannot use raises, as `main` turns it into exit code 2."""
    return CliRunner().invoke(cli, list(map(str, arguments)), standalone_mode=False)


def test_a_missing_folder_is_an_error_and_nothing_is_run(tmp_path: Path) -> None:
    """verl's own cache would silently generate."""
    ran = tmp_path / "ran"
    out = tmp_path / "out"
    done = align("replay", "--rollouts", tmp_path / "gone", "-o", out, "--", "touch", ran)
    assert isinstance(done.exception, AlignError)
    assert "does not exist" in str(done.exception)
    assert not ran.exists() and not out.exists()


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("touched"),))


def test_a_pickle_that_would_run_code_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gen_batch.dp").write_bytes(pickle.dumps({"tensordict": Evil()}))
    done = align("replay", "--rollouts", tmp_path / "gen_batch.dp", "--", "true")
    assert isinstance(done.exception, AlignError)
    assert "gen_batch.dp" in str(done.exception)
    assert not (tmp_path / "touched").exists()


def test_a_damaged_record_is_refused_whole(recorded: Path, tmp_path: Path) -> None:
    text = (recorded / "rollout/1.jsonl").read_text()
    (tmp_path / "1.jsonl").write_text(text[: len(text) // 2])
    done = align("replay", "--rollouts", tmp_path / "1.jsonl", "--", "true")
    assert isinstance(done.exception, AlignError)
    assert "cannot be read whole" in str(done.exception)


def test_a_command_that_consumes_nothing_exits_with_2(recorded: Path, tmp_path: Path) -> None:
    done = align("replay", "--rollouts", recorded, "-o", tmp_path / "out", "--", "true")
    assert done.return_value == 2
    assert "nothing was consumed" in done.output
    manifest = json.loads((tmp_path / "out" / "align-run.json").read_text())
    assert manifest["replay"]["holds"] is False and manifest["replay"]["rows"] == 0


@pytest.mark.parametrize(
    ("told", "kinds", "steps"),
    [
        ((), (*BY_DEFAULT, What.SKETCHES), ((1, 2),)),
        (("--what", "rollouts,config", "--steps", "3"), (What.ROLLOUTS, What.CONFIG), ((3, 3),)),
    ],
)
def test_a_replay_records_what_the_recorded_run_did_unless_told(
    recorded: Path, tmp_path: Path, told: tuple[str, ...], kinds: object, steps: object
) -> None:
    source = tmp_path / "source"
    shutil.copytree(recorded, source)
    theirs = CapturePlan(source, (What.ROLLOUTS, What.SKETCHES), ((1, 2),), tensors=("*.mlp",))
    write_plan(theirs)
    align("replay", "--rollouts", source, "-o", tmp_path / "out", *told, "--", "true")
    own = read_plan(tmp_path / "out" / "capture.json")
    assert (own.run, own.what, own.steps) == (tmp_path / "out", kinds, steps)
    assert own.tensors == ("*.mlp",)


def test_a_kind_that_there_is_not_is_refused(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = align("replay", "--rollouts", recorded, "-o", out, "--what", "pictures", "--", "true")
    assert "'pictures' is not a valid What" in str(done.exception)
    assert not out.exists()


def test_a_used_folder_is_not_used_again(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    line = {"file": "a", "sha256": "", "size_bytes": 1, "step": 1}
    (tmp_path / "index" / "x.jsonl").write_text(json.dumps(line) + "\n")
    done = align("replay", "--rollouts", recorded, "-o", tmp_path, "--", "true")
    assert "already holds a captured run" in str(done.exception)
