"""The traps of verl's own rollout cache, on what the real verl saved: each is caught.

verl 0.9.1 maps saved groups by position without looking at prompts, generates in silence where a
folder is missing, gives one dump to every generate call of a step, hands out saved rewards in place
of the reward function's, and loads pickles. The candidate's prompts here come from the data set of
those runs, through their tokenizer's chat template.
"""

from __future__ import annotations

import pickle
import shutil
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("transformers", reason="prompts are templated by the real tokenizer")

from transformers import AutoTokenizer

from align.core.errors import AlignError
from align.core.rollout_record import RolloutRecord
from align.rollout.replayable import read_replayable
from dumps.inject.drivers.verl_prompts import templating
from dumps.inject.launch import prepare
from dumps.inject.match import place_rows
from dumps.inject.plan import ReplayPlan, Source
from dumps.inject.preflight import Candidate
from dumps.inject.problem import ReplayRefused
from dumps.inject.proof import prove
from dumps.inject.recorded import Prompt
from dumps.inject.replay import Replay

N = 4
SAVED = {"v1": "skip_rollout_tq", "v0": "skip_rollout_v0"}
PARTS = "tiny_recon/GBS8_N4_in64_out16"
RUN = Candidate(num_samples=N, max_prompt_length=64, max_response_length=16, eos_ids=frozenset({2}))


@cache
def load(model: Path) -> Any:
    return AutoTokenizer.from_pretrained(model)


class Case:
    """What one trainer of verl saved for two steps, and the prompts of a run of these settings."""

    def __init__(self, reference_runs: Path, folder: Path, trainer: str) -> None:
        self.saved, self.folder = folder / "saved", folder
        shutil.copytree(reference_runs / SAVED[trainer], self.saved)
        shutil.rmtree(self.saved / PARTS / "3", ignore_errors=True)
        tiny = reference_runs / "tiny_model_tokenizer_data"
        self.tokenizer = load(tiny / "model")
        makes = templating(self.tokenizer, {"max_prompt_length": 64})
        table = pq.read_table(tiny / "train.parquet").to_pylist()
        self.asked: dict[int, list[Prompt]] = {1: [], 2: []}
        counts = Counter((r.step, r.extras["raw_prompt"][0]["content"]) for r in self.rows())
        for (step, question), count in counts.items():
            same = [i for i, r in enumerate(table) if r["prompt"][0]["content"] == question]
            for place in same[: count // N]:  # two rows of this data set can ask the same
                own = {"raw_prompt": table[place]["prompt"], "index": place}
                self.asked[step or 0].append(makes.prompt(own))

    def rows(self) -> Sequence[RolloutRecord]:
        return read_replayable(self.saved, None, None).rows

    def replay(self, rows: Sequence[RolloutRecord] | None = None, **plan: Any) -> Replay:
        made = ReplayPlan(self.folder / "run", **plan)
        prepare(made, self.rows() if rows is None else rows, [], None)
        return Replay(made)

    def check(self, replay: Replay, run: Candidate = RUN, asked: Any = None) -> None:
        replay.check(run, (1, 2), asked or self.asked, self.tokenizer)


@pytest.fixture(params=["v1", "v0"])
def case(request: pytest.FixtureRequest, reference_runs: Path, tmp_path: Path) -> Case:
    return Case(reference_runs, tmp_path, request.param)


def answers(replay: Replay, step: int, asked: Sequence[Prompt]) -> list[RolloutRecord]:
    """Give what a generate call is answered."""
    groups = replay.give(step, asked)
    assert None not in groups
    return [replay.record(step, g, i) for g in groups if g is not None for i in range(N)]


def test_what_verl_saved_fits_the_run_that_saved_it(case: Case) -> None:
    fitting = case.replay()
    case.check(fitting)
    for step in (1, 2):
        given = answers(fitting, step, case.asked[step])
        assert [r.prompt_ids for r in given] == [p.ids for p in case.asked[step] for _ in range(N)]
        assert sorted(map(str, given)) == sorted(str(r) for r in fitting.step(step).records)  # type: ignore[union-attr]


def test_a_missing_step_folder_is_refused(case: Case) -> None:
    shutil.rmtree(case.saved / PARTS / "2")
    with pytest.raises(ReplayRefused, match="1 steps of this run are not recorded: 2"):
        case.check(case.replay())


def test_a_missing_folder_is_refused(case: Case) -> None:
    shutil.rmtree(case.saved)
    with pytest.raises(AlignError, match="does not exist"):
        case.rows()


@pytest.mark.parametrize("n", [5, 8, 2])
def test_another_n_is_refused_whatever_the_folders_name_says(case: Case, n: int) -> None:
    (case.saved / PARTS).rename(case.saved / PARTS.replace("N4", f"N{n}"))
    named = rf"n has changed: 8 prompts with 4 responses are recorded, and .* n = {n}"
    with pytest.raises(ReplayRefused, match=named):
        case.check(case.replay(), replace(RUN, num_samples=n))


def test_permuted_prompts_get_their_own_responses(case: Case) -> None:
    permuted = case.asked[1][::-1]
    mapped = case.replay()
    case.check(mapped, asked={1: permuted})
    given = answers(mapped, 1, permuted)
    assert [r.prompt_ids for r in given] == [p.ids for p in permuted for _ in range(N)]
    by_position = [r.prompt_ids for r in mapped.step(1).records]  # type: ignore[union-attr]
    assert by_position != [r.prompt_ids for r in given]  # what verl's own cache would have mixed up


def test_prompts_of_another_step_are_refused(case: Case) -> None:
    swapped = {1: case.asked[2], 2: case.asked[1]}
    with pytest.raises(ReplayRefused, match="recorded at step 2: the row order differs, use --ord"):
        case.check(case.replay(), asked=swapped)


def test_several_generate_calls_of_a_step_never_get_the_same_responses(case: Case) -> None:
    first, second = case.asked[1][:4], case.asked[1][4:]
    apart = case.replay()
    given = [answers(apart, 1, call) for call in (first, second)]
    assert [r.prompt_ids for r in given[1]] == [p.ids for p in second for _ in range(N)]
    with pytest.raises(ReplayRefused, match="a prompt is asked more often than recorded"):
        apart.give(1, first)
    other = case.asked[2][:4]
    with pytest.raises(ReplayRefused, match="a prompt is not recorded"):
        case.replay().give(1, other)


def test_saved_rewards_do_not_stand_in_for_the_candidates_unless_asked(case: Case) -> None:
    """A reward function that never runs cannot be found to be another."""
    replay = case.replay()
    assert replay.plan.rewards is Source.RECOMPUTED
    step = replay.step(1)
    assert step is not None
    own = [(Prompt(r.prompt_ids), r.response_ids or ()) for r in step.records]
    places = place_rows(step, own)
    rows = zip(places, step.records, strict=True)
    lines = [(p, r.prompt_ids or (), r.response_ids or (), (r.score or 0) + 1) for p, r in rows]
    replay.consumed("driver-0", 1, lines)
    assert prove(replay.plan).scores_differ == 32
    unscored = [replace(row, score=None) for row in case.rows()]
    with pytest.raises(ReplayRefused, match="rows without a score are recorded"):
        case.check(case.replay(unscored, rewards=Source.RECORDED))
    case.check(case.replay(rewards=Source.RECORDED))


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("touched"),))


def test_a_saved_rollout_whose_pickle_would_run_code_is_refused_and_not_run(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case.folder)
    (file, *_) = sorted([*case.saved.rglob("tq_batch.pt"), *case.saved.rglob("gen_batch.dp")])
    if zipfile.is_zipfile(file):  # torch's: the pickle is an entry of the archive
        with zipfile.ZipFile(file) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in content.items():
                planted = pickle.dumps(Evil()) if name.endswith("data.pkl") else data
                archive.writestr(name, planted)
    else:
        file.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(AlignError, match=file.name):
        case.rows()
    assert not Path("touched").exists()
