"""A capture's statistics as a msprobe dump: the format's own description and our reader agree."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from align.cli.main import cli
from align.core.rung import RungStatus
from align.layers.msprobe_rung import compare_folders
from dumps.readers.msprobe import read
from dumps.readers.msprobe_folder import dump_places
from dumps.readers.reader import no_progress
from dumps.store.msprobe_writer import write_msprobe
from dumps.store.tensor_records import Phase, SketchFile, TensorRecord

LAYER = "model.layers.0"


def record(name: str, phase: str, order: int, *, l2: float = 2.0, update: int = 0) -> TensorRecord:
    empty = np.zeros((16, 16))
    shape, counts = (1, 4, 2), (0, 0, 0, 0, 0, 0)
    return TensorRecord(
        name, phase, update, order, "float32", shape, 8, empty, l2, 4.0, -1.0, 1.0, *counts
    )


def captured(step: int = 3, rank: int = 0, l2: float = 2.0) -> SketchFile:
    records = (
        record("model.embed_tokens", Phase.FORWARD, 0),
        record(f"{LAYER}.self_attn.o_proj", Phase.INPUT, 1),
        record(f"{LAYER}.self_attn.o_proj", Phase.FORWARD, 2, l2=l2),
        record(f"{LAYER}.self_attn", Phase.FORWARD, 3, l2=l2),
        record(LAYER, Phase.FORWARD, 4),
        record(LAYER, Phase.GRADIENT, 5),
        record(f"{LAYER}.self_attn.o_proj", Phase.GRADIENT, 6),
        record(f"{LAYER}.self_attn.o_proj.weight", Phase.PARAMETER, 7),
        record(f"{LAYER}.self_attn.o_proj.weight", Phase.PARAMETER_GRADIENT, 8),
        record(f"{LAYER}.self_attn.o_proj.weight", Phase.PARAMETER_GRADIENT, 9, update=1),
    )
    return SketchFile("run", step, rank, records, (), (), {})


def test_a_step_of_a_rank_becomes_a_dump_of_its_own(tmp_path: Path) -> None:
    written = write_msprobe([captured(3, 0), captured(3, 1)], tmp_path)
    assert written == (tmp_path / "step3" / "rank0", tmp_path / "step3" / "rank1")
    assert [(place.stage, place.rank) for place in dump_places(tmp_path)] == [
        ("step3", 0),
        ("step3", 1),
    ]


def test_keys_and_order_are_those_of_the_format(tmp_path: Path) -> None:
    (folder,) = write_msprobe([captured()], tmp_path)
    document = json.loads((folder / "dump.json").read_text())
    assert (document["task"], document["level"], document["framework"]) == (
        "statistics",
        "L0",
        "pytorch",
    )
    assert list(document["data"]) == [
        "Module.model.embed_tokens.Module.forward.0",
        "Module.model.layers.0.self_attn.o_proj.Module.forward.0",
        "Module.model.layers.0.self_attn.Module.forward.0",
        "Module.model.layers.0.Module.forward.0",
        "Module.model.layers.0.Module.backward.0",
        "Module.model.layers.0.self_attn.o_proj.Module.parameters_grad.0",
        "Module.model.layers.0.self_attn.o_proj.Module.backward.0",
    ]
    leaf = document["data"]["Module.model.embed_tokens.Module.forward.0"]["output"][0]
    assert list(leaf) == ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad"]
    assert (leaf["Mean"], leaf["Norm"], leaf["shape"]) == (0.5, 2.0, [1, 4, 2])


def test_parents_come_before_children_in_the_tree(tmp_path: Path) -> None:
    (folder,) = write_msprobe([captured()], tmp_path)
    parents = json.loads((folder / "construct.json").read_text())
    layer = "Module.model.layers.0.Module.forward.0"
    assert parents["Module.model.layers.0.self_attn.o_proj.Module.forward.0"] == (
        "Module.model.layers.0.self_attn.Module.forward.0"
    )
    assert parents["Module.model.layers.0.self_attn.Module.forward.0"] == layer
    assert parents[layer] is None
    seen: set[str] = set()
    for key, parent in parents.items():
        assert parent is None or parent in seen
        seen.add(key)
    stack = json.loads((folder / "stack.json").read_text())
    assert {key for keys, _ in stack.values() for key in keys} == {
        key for key in parents if ".forward." in key
    }


def test_our_reader_and_comparison_take_the_dump(tmp_path: Path) -> None:
    write_msprobe([captured()], tmp_path / "own")
    write_msprobe([captured()], tmp_path / "same")
    write_msprobe([captured(l2=2.5)], tmp_path / "other")
    (place,) = dump_places(tmp_path / "own")
    dump = read(place.path, no_progress)
    assert (len(dump.entries), dump.problems) == (7, ())
    same = compare_folders(tmp_path / "own", tmp_path / "same").rungs
    assert [rung.status for rung in same] == [RungStatus.ALIGNED] * 2
    found = compare_folders(tmp_path / "own", tmp_path / "other").rungs[0].findings[0]
    assert f"{LAYER}.self_attn.o_proj" in found.title.en


def test_nan_is_written_as_msprobe_writes_it(tmp_path: Path) -> None:
    (folder,) = write_msprobe([captured(l2=math.nan)], tmp_path)
    assert '"Norm": NaN' in (folder / "dump.json").read_text()


def test_the_command_exports_a_capture_and_refuses_a_full_folder(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra torch")
    from tests.unit.layer_runs import recorded

    recorded(tmp_path / "run")
    out = tmp_path / "out"
    arguments = ["layers", "export", str(tmp_path / "run"), "-o", str(out)]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    names = {entry.key.path for entry in read(dump_places(out)[0].path, no_progress).entries}
    assert {"model.embed_tokens", "model.layers.2.self_attn.o_proj", "lm_head"} <= names
    assert CliRunner().invoke(cli, arguments).exit_code != 0
