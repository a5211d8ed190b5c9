"""Real and damaged msprobe dumps: every entry is read, or its place and a fix are said."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import AlignError, DumpError
from align.core.run import ArtifactKind
from dumps.readers.msprobe import FORMAT, read
from dumps.readers.msprobe_folder import dump_places
from dumps.readers.msprobe_keys import Direction, Key, parse_key
from dumps.readers.reader import no_progress
from dumps.store.discover import discover

# keys and tensors of each folder, counted by a second program over the same files
COUNTS = {
    "dist2_mix_statistics": (470, 1150),
    "l0_statistics_2steps": (164, 372),
    "l0_tensor": (82, 186),
    "l0_tensor_eps": (82, 186),
    "mix_md5": (233, 569),
    "mix_statistics": (233, 569),
    "mix_statistics_eps": (233, 569),
    "mix_statistics_nan": (233, 569),
    "mix_xor": (233, 569),
}
LEAF = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 0.0}
ENTRY = {"input_args": [LEAF], "input_kwargs": {}, "output": [LEAF]}


@pytest.mark.parametrize("name", COUNTS)
def test_every_real_dump_reads_whole(name: str, shared: Path) -> None:
    dumps = [
        read(place.path, no_progress)
        for place in dump_places(shared / "reference" / "msprobe" / name)
    ]
    entries = [entry for dump in dumps for entry in dump.entries]
    assert (len(entries), sum(len(entry.tensors) for entry in entries)) == COUNTS[name]
    assert [dump.problems for dump in dumps] == [()] * len(dumps)


def test_a_dump_that_verl_made_reads_by_stage(shared: Path) -> None:
    places = dump_places(shared / "reference" / "verl_runs" / "msprobe_via_verl_L0")
    assert [(place.stage, place.rank, place.step) for place in places] == [
        ("step_1/actor_compute_log_prob/step0", 0, 1),
        ("step_1/actor_update/step0", 0, 1),
        ("step_1/ref_compute_log_prob/step0", 0, 1),
    ]
    counts = [len(read(place.path, no_progress).entries) for place in places]
    assert counts == [116, 308, 116]


def test_a_vendor_dump_of_a_lone_process_reads(corpus: Path) -> None:
    places = dump_places(corpus / "msprobe")
    assert [(place.path.parent.name, place.rank) for place in places] == [("proc2016", None)] * 2
    dump = read(places[0].path, no_progress)
    assert (len(dump.entries), sum(len(entry.tensors) for entry in dump.entries)) == (760, 2071)


def test_nan_stands_as_a_number(shared: Path) -> None:
    folder = shared / "reference" / "msprobe" / "mix_statistics_nan"
    (place,) = dump_places(folder)
    tensors = [t for entry in read(place.path, no_progress).entries for t in entry.tensors]
    assert any(t.maximum is not None and math.isnan(t.maximum) for t in tensors)


def test_discovery_knows_a_dump_by_its_content(tmp_path: Path) -> None:
    written(tmp_path, {"Module.a.Linear.forward.0": ENTRY})
    (artifact,) = discover([tmp_path]).artifacts
    assert (artifact.kind, artifact.format) == (ArtifactKind.LAYERS, FORMAT)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Tensor.__add__.5.forward", Key(None, "Tensor.__add__", Direction.FORWARD, 5)),
        ("Functional.linear.0.backward", Key(None, "Functional.linear", Direction.BACKWARD, 0)),
        (
            "Module.model.layers.0.mlp.Qwen2MLP.forward.3",
            Key("model.layers.0.mlp", "Qwen2MLP", Direction.FORWARD, 3),
        ),
        (
            "Module.0.lm_head.Linear.parameters_grad.1",
            Key("0.lm_head", "Linear", Direction.PARAMETERS_GRAD, 1),
        ),
        ("logits.0.debug", None),
    ],
)
def test_a_key_is_taken_apart(text: str, key: Key | None) -> None:
    assert parse_key(text) == key


def test_a_file_cut_off_gives_the_entries_before_the_cut(tmp_path: Path) -> None:
    data = {f"Module.l.{i}.Linear.forward.0": ENTRY for i in range(5)}
    path = written(tmp_path, data)
    text = path.read_text()
    path.write_text(text[: text.index("Module.l.3") + 80])
    dump = read(path, no_progress)
    assert [entry.key.path for entry in dump.entries] == ["l.0", "l.1", "l.2"]
    assert (dump.task, dump.level) == ("statistics", "L0")
    (problem,) = dump.problems
    assert "cut off" in str(problem)
    assert str(path) in str(problem)


def test_entries_of_another_form_are_left_out_and_said_once(tmp_path: Path) -> None:
    data = {
        "Module.a.Linear.forward.0": ENTRY,
        "Module.b.Linear.forward.0": ["no entry"],
        "Module.c.Linear.forward.0": {"output": [{**LEAF, "shape": "two"}]},
        "what": ENTRY,
    }
    dump = read(written(tmp_path, data), no_progress)
    assert [entry.key.path for entry in dump.entries] == ["a"]
    (problem,) = dump.problems
    assert "3 entries" in str(problem)


def test_a_tensor_file_outside_the_folder_is_not_followed(tmp_path: Path) -> None:
    leaf = {**LEAF, "data_name": "../../secret.pt"}
    dump = read(written(tmp_path, {"Module.a.L.forward.0": {"output": [leaf]}}), no_progress)
    assert dump.entries[0].tensors[0].file is None


def test_a_file_without_any_entry_is_an_error_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"debugger\.stop"):
        read(written(tmp_path, {}), no_progress)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_no_document_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, document: object
) -> None:
    path = tmp_path_factory.mktemp("any") / "dump.json"
    path.write_text(json.dumps({"task": "statistics", "level": "L0", "data": document}))
    try:
        read(path, no_progress)
    except AlignError as error:
        assert str(path) in str(error)


def written(folder: Path, data: Mapping[str, object]) -> Path:
    path = folder / "step0" / "rank0" / "dump.json"
    path.parent.mkdir(parents=True)
    head = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None}
    path.write_text(json.dumps({**head, "data": data}))
    return path
