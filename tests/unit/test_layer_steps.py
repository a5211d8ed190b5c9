"""Every step compared: the numbers of one record at a time, and the step where errors begin."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch
from click.testing import CliRunner

from align.cli.layers import command
from align.layers.all_steps import AllSteps, common_files, compare_steps
from align.layers.captured import captured_steps, merged
from align.layers.measure import difference
from align.layers.spread import Spread, chunks
from align.layers.step_errors import Chunk, StepFiles, measure
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.write import write_step
from dumps.readers.sketches import read, read_table
from dumps.store.discover import discover
from dumps.store.record_table import added_up
from dumps.store.run_data import RunData
from dumps.store.tensor_records import sketch_path
from tests.unit.layer_runs import recorded

STEPS = 4
FAULTY_FROM = 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Record four steps of a model, of the same with weights moved a little, and of a wrong one."""
    folder = tmp_path_factory.mktemp("runs")

    def drift(model: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 1e-4)

    def fault(model: Any) -> None:
        drift(model)
        model.model.layers[1].post_attention_layernorm.variance_epsilon = 1.0

    recorded(folder / "reference", steps=STEPS)
    recorded(folder / "drifted", drift, steps=STEPS)
    recorded(folder / "wrong", fault, steps=STEPS)
    shutil.copytree(folder / "drifted", folder / "later_wrong")
    for step in range(FAULTY_FROM, STEPS + 1):
        shutil.copy(*(sketch_path(folder / n, step, 0) for n in ("wrong", "later_wrong")))
    return {path.name: path for path in folder.iterdir()}


def compared(reference: Path, candidate: Path, workers: int = 1) -> AllSteps:
    both = [RunData(discover([path])) for path in (reference, candidate)]
    found, problems = compare_steps(common_files(*both), Spread(map, workers))
    assert not problems
    return found


def test_a_fault_from_a_later_step_on_is_named_with_its_step_and_module(
    runs: dict[str, Path],
) -> None:
    found = compared(runs["reference"], runs["later_wrong"])
    assert found.departure is not None
    assert found.departure.step == FAULTY_FROM
    phase, name, _ = found.departure.key
    assert (phase, name) == ("forward", "model.layers.1.post_attention_layernorm")
    (row,) = [each for each in found.addresses if each.key == found.departure.key]
    assert (row.first, row.beyond, row.count) == (FAULTY_FROM, STEPS - FAULTY_FROM + 1, STEPS)


def test_weights_that_drifted_apart_accuse_no_module(runs: dict[str, Path]) -> None:
    found = compared(runs["reference"], runs["drifted"])
    assert found.departure is None
    weights = [each for each in found.addresses if each.key[0] == "parameter"]
    assert weights and all(each.first == 1 for each in weights)


def test_equal_runs_have_no_error_anywhere(runs: dict[str, Path]) -> None:
    found = compared(runs["reference"], runs["reference"])
    assert found.num_records == STEPS * len(found.addresses) > 400
    assert max(each.worst for each in found.addresses) == 0


def test_errors_are_those_of_one_record_at_a_time(runs: dict[str, Path]) -> None:
    paths = [(sketch_path(runs[name], 3, 0),) for name in ("reference", "wrong")]
    (errors,) = measure(Chunk((StepFiles(3, *paths),))).steps
    own, other = (captured_steps(RunData(discover([runs[n]])))[3] for n in ("reference", "wrong"))
    assert len(errors.keys) == sum(map(len, own.records.values()))
    for (phase, name, update), relative, gain in zip(
        errors.keys, errors.relative, errors.gain, strict=True
    ):
        expected = difference(own.of(phase)[name, update], other.of(phase)[name, update])
        assert relative == pytest.approx(expected.relative, rel=1e-12)
        assert gain == pytest.approx(expected.gain, rel=1e-12)


@pytest.mark.parametrize("workers", [2, 4, 7])
def test_the_cut_by_step_and_layer_changes_nothing(runs: dict[str, Path], workers: int) -> None:
    whole, cut = (compared(runs["reference"], runs["later_wrong"], n) for n in (1, workers))
    assert [replace(each, by_columns=[]) for each in cut.addresses] == [
        replace(each, by_columns=[]) for each in whole.addresses
    ]
    assert (cut.departure, cut.num_records) == (whole.departure, whole.num_records)


def test_every_step_and_layer_is_in_one_chunk_alone() -> None:
    for count in (1, 3, 32, 100):
        files = [StepFiles(step, (), ()) for step in range(count)]
        for workers in (1, 2, 5, 64):
            made = chunks(files, workers)
            seen = [(each.step, chunk.part) for chunk in made for each in chunk.files]
            assert seen == sorted(set(seen))
            assert {step for step, _ in seen} == set(range(count))
            assert len(made) >= min(workers, count)


def test_ranks_add_up_as_records_do(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    paths = []
    for rank in range(3):
        recorder = Recorder()
        for name in (*"abc"[rank:], "d"):
            value = torch.randn(6, 4, generator=generator)
            value[0, 0] = math.nan if name == "b" else 0
            recorder.add_weight(name, "parameter_gradient", value, 6 * rank)
        paths.append(write_step(tmp_path, 1, rank, recorder))
    made = added_up([read_table(path) for path in paths if path is not None])
    records = merged([read(path, lambda _: None) for path in paths if path is not None])
    for row, (phase, name, update) in enumerate(made.keys):
        own, expected = made.record(row), records.of(phase)[name, update]
        np.testing.assert_array_equal(own.sketch, expected.sketch)
        assert own.l2 == pytest.approx(expected.l2, nan_ok=True)
        for key in ("order", "shape", "num_elements", "nan", "digest", "dtype"):
            assert getattr(own, key) == getattr(expected, key), key
    assert len(made.keys) == 4


def test_nan_on_one_side_is_an_infinite_error(tmp_path: Path) -> None:
    for side, value in (("one", 1.0), ("other", math.nan)):
        recorder = Recorder()
        recorder.add_weight("w", "parameter_gradient", torch.full((2, 3), value))
        write_step(tmp_path / side, 1, 0, recorder)
    found = compared(tmp_path / "one", tmp_path / "other")
    assert found.departure is not None and found.departure.relative == math.inf
    assert compared(tmp_path / "other", tmp_path / "other").departure is None


def test_other_tokens_are_counted_and_not_compared(tmp_path: Path) -> None:
    for side, first in (("one", 0), ("other", 1)):
        recorder = Recorder()
        recorder.add_weight("w", "parameter_gradient", torch.ones(2, 3), first)
        recorder.add_weight(f"only_{side}", "parameter_gradient", torch.ones(2, 3))
        write_step(tmp_path / side, 1, 0, recorder)
    found = compared(tmp_path / "one", tmp_path / "other")
    assert (found.num_records, found.not_compared) == (0, (2, 1))


def test_the_command_says_step_and_module_and_exits_with_findings(runs: dict[str, Path]) -> None:
    sides = [str(runs["reference"]), str(runs["later_wrong"])]
    done = CliRunner().invoke(command, ["diff", *sides, "--all-steps"])
    assert done.exit_code == 1
    assert f"step {FAULTY_FROM} is the first" in done.output
    assert "model.layers.1.post_attention_layernorm" in done.output
    clean = [str(runs["reference"]), str(runs["drifted"]), "--all-steps"]
    assert CliRunner().invoke(command, ["diff", *clean]).exit_code == 0


def test_a_broken_file_is_a_problem_and_the_other_steps_are_compared(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(runs["reference"], tmp_path / "run")
    path = sketch_path(tmp_path / "run", 2, 0)
    path.write_bytes(path.read_bytes()[:-100])
    both = [RunData(discover([path])) for path in (runs["reference"], tmp_path / "run")]
    found, _ = compare_steps(common_files(*both), Spread(map, 1))
    assert found.steps == (1, 3, 4)
    assert "record the step again" in str(both[1].problems)
