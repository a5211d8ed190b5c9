"""Two msprobe dumps are compared rightly: the planted fault is named, a clean pair is silent."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from click.testing import CliRunner

from align.cli.main import cli
from align.core.rung import RungResult, RungStatus
from align.layers.msprobe_rung import compare_folders
from tests.unit.msprobe_dumps import Block, dump_model

RECORDED = Path(__file__).resolve().parents[1] / "golden" / "msprobe"


def scale(model: Block) -> None:
    model.layer(1).self_attn.scale *= 1.01


def epsilon(model: Block) -> None:
    model.layer(1).input_layernorm.epsilon = 1e-1


def one_weight(model: Block) -> None:
    with torch.no_grad():
        weight = model.layer(1).self_attn.v_proj.weight
        weight[3, 5] += weight.abs().max() * 0.1


def not_a_number(model: Block) -> None:
    norm = model.layer(1).input_layernorm
    norm.register_forward_hook(lambda m, a, out: out.clone().fill_(torch.nan))


def in_bfloat16(model: Block) -> None:
    attention = model.layer(1).self_attn
    original = attention.to(torch.bfloat16).forward
    attention.forward = lambda x: original(x.to(torch.bfloat16)).to(x.dtype)  # type: ignore[method-assign]


FAULTS = {
    scale: ("forward.first_divergence", "model.layers.1.self_attn.o_proj"),
    epsilon: ("forward.first_divergence", "model.layers.1.input_layernorm"),
    one_weight: ("forward.other_weights", "model.layers.1.self_attn.v_proj"),
    in_bfloat16: ("forward.dtype", "model.layers.1.self_attn.q_proj"),
}


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_named_with_its_module(fault: Any, task: str, tmp_path: Path) -> None:
    own = dump_model(tmp_path / "own", task=task)
    other = dump_model(tmp_path / "other", fault, task=task)
    id, module = FAULTS[fault]
    found = forward(own, other).findings[0]
    assert found.id == id
    assert module in found.title.en
    assert module in found.title.zh


def test_the_weight_that_differs_is_counted_number_by_number(tmp_path: Path) -> None:
    own, other = dump_model(tmp_path / "own"), dump_model(tmp_path / "other", one_weight)
    (found,) = forward(own, other).findings
    assert "in 1 of 256 numbers" in found.title.en
    assert any("at [3, 5]" in (evidence.text or "") for evidence in found.evidence)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_dump_agrees_with_a_repeated_one(task: str, tmp_path: Path) -> None:
    own, other = (
        dump_model(tmp_path / "own", task=task),
        dump_model(tmp_path / "other", task=task, process="proc4711"),
    )
    rungs = compare_folders(own, other).rungs
    assert [(rung.status, rung.findings) for rung in rungs] == [(RungStatus.ALIGNED, ())] * 2


def test_other_token_ids_are_said_and_no_layer_is_blamed(tmp_path: Path) -> None:
    for task in ("tensor", "statistics"):
        own = dump_model(tmp_path / f"own_{task}", task=task)
        other = dump_model(tmp_path / f"other_{task}", task=task, seed=4)
        assert [f.id for f in forward(own, other).findings] == ["forward.other_inputs"]


def test_ids_whose_extremes_agree_are_told_by_what_the_embedding_looks_up(tmp_path: Path) -> None:
    own, other = (
        dump_model(tmp_path / "own", task="statistics"),
        dump_model(tmp_path / "other", task="statistics", seed=4),
    )
    both = [json.loads(dump_json(folder).read_text()) for folder in (own, other)]
    for key, entry in both[1]["data"].items():
        if "Embedding.forward" in key:
            entry["input_args"] = both[0]["data"][key]["input_args"]
    dump_json(other).write_text(json.dumps(both[1]))
    (found,) = forward(own, other).findings
    assert found.id == "forward.other_inputs"
    assert "look" in found.why.en


def test_nan_on_one_side_is_where_it_first_arises(tmp_path: Path) -> None:
    own, other = dump_model(tmp_path / "own"), dump_model(tmp_path / "other", not_a_number)
    found = forward(own, other).findings[0]
    assert found.id == "forward.first_divergence"
    assert "NaN or infinity" in found.title.en
    assert "model.layers.1.input_layernorm" in found.title.en or "q_proj" in found.title.en


def test_axes_in_another_order_are_no_error(tmp_path: Path) -> None:
    own = dump_model(tmp_path / "own")
    other = dump_model(tmp_path / "other", layout=lambda tensor: tensor.transpose(0, 1))
    result = forward(own, other)
    assert result.status is RungStatus.ALIGNED
    assert [finding.id for finding in result.findings] == ["forward.layout"]


def test_a_fault_is_found_behind_axes_in_another_order(tmp_path: Path) -> None:
    own = dump_model(tmp_path / "own")
    other = dump_model(tmp_path / "other", epsilon, layout=lambda tensor: tensor.transpose(0, 1))
    found = forward(own, other).findings[0]
    assert found.id == "forward.first_divergence"
    assert "model.layers.1.input_layernorm" in found.title.en


def test_a_wrapper_prefix_is_taken_off(tmp_path: Path) -> None:
    own = dump_model(tmp_path / "own")
    other = dump_model(tmp_path / "other", epsilon, prefix="policy.model.")
    found = forward(own, other).findings[0]
    assert "model.layers.1.input_layernorm" in found.title.en


def test_checksums_name_the_first_call_whose_inputs_are_equal(tmp_path: Path) -> None:
    own, other = (
        dump_model(tmp_path / name, edit, task="statistics", digest=True)
        for name, edit in (("own", lambda model: None), ("other", epsilon))
    )
    for folder in (own, other):  # as summary_mode xor, which leaves statistics out
        document = json.loads(dump_json(folder).read_text())
        for entry in document["data"].values():
            for leaf in leaves(entry):
                for name in ("Max", "Min", "Mean", "Norm"):
                    del leaf[name]
        dump_json(folder).write_text(json.dumps(document))
    result = forward(own, other)
    assert result.status is RungStatus.UNDECIDED
    assert result.findings[0].id == "forward.first_other_bits"
    assert "model.layers.1.input_layernorm" in result.findings[0].title.en
    assert forward(own, own).status is RungStatus.ALIGNED


def test_nothing_in_common_is_not_called_aligned(tmp_path: Path) -> None:
    own, other = dump_model(tmp_path / "own"), dump_model(tmp_path / "other")
    document = json.loads(dump_json(other).read_text())
    document["data"] = {
        key.replace("Module.model.", "Module.elsewhere.x"): entry
        for key, entry in document["data"].items()
    }
    dump_json(other).write_text(json.dumps(document))
    result = forward(own, other)
    assert result.status is RungStatus.MISSING
    assert result.findings[0].id == "forward.unpaired"


def test_a_tensor_file_that_cannot_be_read_is_said_once_and_statistics_serve(
    tmp_path: Path,
) -> None:
    own, other = dump_model(tmp_path / "own"), dump_model(tmp_path / "other", epsilon)
    for name in ("forward.0.output.0", "forward.0.input.0"):
        for file in (own / "step0/rank0/dump_tensor_data").glob(f"*Norm*{name}.pt"):
            file.write_bytes(b"PK\x03\x04 cut off")
    diff = compare_folders(own, other)
    (problem,) = diff.problems
    assert "compared by statistics instead" in str(problem)
    assert "model.layers.1.input_layernorm" in diff.rungs[0].findings[0].title.en


RECORDED_FAULTS = {
    "scale_l2": ("forward.first_divergence", "model.layers.2.self_attn.o_proj"),
    "w_l2": ("forward.other_weights", "model.layers.2.mlp.down_proj"),
    "eps_l2": ("forward.first_divergence", "model.layers.2.post_attention_layernorm"),
    "eps": ("forward.first_divergence", "model.layers.0.input_layernorm"),
    "bf16mlp2": ("forward.dtype", "model.layers.2.mlp.gate_proj"),
    "bf16all": ("forward.dtype", "model.embed_tokens"),
    "ids": ("forward.other_inputs", "model"),
    "mix_scale_l2": ("forward.other_argument", "scaled_dot_product_attention"),
    "mix_eps_l2": ("forward.other_argument", "model.layers.2.post_attention_layernorm"),
}


@pytest.mark.parametrize("name", RECORDED_FAULTS)
def test_a_fault_in_what_msprobe_itself_dumped_is_named(name: str, tmp_path: Path) -> None:
    clean = "mix_none" if name.startswith("mix") else "none"
    found = forward(recorded(clean, tmp_path), recorded(name, tmp_path)).findings[0]
    id, module = RECORDED_FAULTS[name]
    assert (found.id, module in found.title.en) == (id, True)


@pytest.mark.parametrize("pair", [("none", "none"), ("none", "eager"), ("mix_none", "mix_none")])
def test_a_clean_pair_that_msprobe_dumped_has_no_finding(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    own, other = (recorded(name, tmp_path) for name in pair)
    rungs = compare_folders(own, other).rungs
    assert [(rung.status, rung.findings) for rung in rungs] == [(RungStatus.ALIGNED, ())] * 2


def test_one_harmless_product_shifts_no_other_call(tmp_path: Path) -> None:
    result = forward(recorded("mix_none", tmp_path), recorded("mix_mul1", tmp_path))
    assert result.status is RungStatus.ALIGNED
    (found,) = result.findings
    assert found.id == "forward.unpaired"
    assert (found.reference, found.candidate) == (0, 2)


def test_real_dumps_with_another_epsilon_are_told_apart(shared: Path) -> None:
    dumps = shared / "reference" / "msprobe"
    found = forward(dumps / "l0_tensor", dumps / "l0_tensor_eps").findings[0]
    assert "model.layers.0.input_layernorm" in found.title.en
    found = forward(dumps / "mix_statistics", dumps / "mix_statistics_eps").findings[0]
    assert (found.reference, found.candidate) == ("1e-06", "0.01")
    found = forward(dumps / "mix_statistics", dumps / "mix_statistics_nan").findings[0]
    assert "model.layers.1.mlp.down_proj" in found.title.en


def test_real_dumps_agree_with_themselves(shared: Path) -> None:
    for folder in sorted((shared / "reference" / "msprobe").iterdir()):
        if folder.is_dir() and folder.name != "debug_save":
            for rung in compare_folders(folder, folder).rungs:
                assert (rung.status, rung.findings) == (RungStatus.ALIGNED, ()), folder.name


def test_the_command_tells_dumps_by_content_and_exits_with_one(tmp_path: Path) -> None:
    own, other = dump_model(tmp_path / "own"), dump_model(tmp_path / "other", epsilon)
    done = CliRunner().invoke(cli, ["layers", "diff", str(own), str(other), "--json"])
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert document["verdict"]["finding_id"] == "forward.first_divergence"
    assert CliRunner().invoke(cli, ["layers", "diff", str(own), str(own)]).exit_code == 0


def forward(own: Path, other: Path) -> RungResult:
    return compare_folders(own, other).rungs[0]


def dump_json(folder: Path) -> Path:
    return folder / "step0" / "rank0" / "dump.json"


def leaves(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        inner = [leaf for item in value.values() for leaf in leaves(item)]
        return [value] if "dtype" in value else inner
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else []


def recorded(name: str, folder: Path) -> Path:
    """Unpack a dump of msprobe 26.2.0."""
    place = folder / name / "step0" / "rank0"
    if not place.exists():
        place.mkdir(parents=True)
        for kind in ("dump", "construct"):
            source = RECORDED / f"{name}.{kind}.json.gz"
            with gzip.open(source) as packed, (place / f"{kind}.json").open("wb") as file:
                shutil.copyfileobj(packed, file)
    return folder / name
