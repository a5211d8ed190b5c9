"""Whole tensors: recorded beside the sketches, paired by token, and judged number by number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")
pytest.importorskip("transformers", reason="needs the extra torch")

import numpy as np
import torch
from torch import Tensor

from align.core.run import RunManifest
from align.core.rung import RungResult, RungStatus
from align.layers import backward_rung
from align.layers.forward_rung import compare
from align.stack.sketches import Sketches
from dumps.capture.failures import FailureLog
from dumps.capture.plan import VARIABLE, CapturePlan, What, write_plan
from dumps.capture.sketch.step import sketched_step
from dumps.capture.tensors import WholeTensors
from dumps.store.discover import discover
from dumps.store.manifest import write_manifest
from dumps.store.run_data import RunData
from tests.unit.layer_runs import Edit, batch, loss_of, tiny_qwen2

PATTERNS = ("model.layers.1.self_attn.*_proj", "model.layers.1.mlp.*", "model.norm")
Q = "model.layers.1.self_attn.q_proj"


def kept(
    folder: Path,
    edit: Edit = lambda model: None,
    *,
    side: str = "right",
    packed: bool = False,
    dtype: torch.dtype = torch.float32,
) -> RunData:
    model = tiny_qwen2(tie_word_embeddings=False).to(dtype)
    edit(model)
    (folder / "model").mkdir(parents=True)
    config = json.dumps(model.config.to_dict(), default=str)
    (folder / "model" / "config.json").write_text(config, encoding="utf-8")
    log = FailureLog(folder, "test")
    with sketched_step(model, folder, 1, log, whole=PATTERNS):
        if packed:
            packed_pass(model)
        else:
            loss_of(model, batch(side)).backward()
    assert not (folder / "capture.log").exists(), (folder / "capture.log").read_text()
    return RunData(discover([folder]))


def packed_pass(model: Any) -> None:
    """Run the batch's rows as one, which attend each to itself alone."""
    inputs = batch()
    attended = inputs["attention_mask"].bool()
    ids, positions = (inputs[name][attended][None] for name in ("input_ids", "position_ids"))
    sequence = (positions[0] == 0).cumsum(0)
    causal = torch.arange(ids.shape[1])[:, None] >= torch.arange(ids.shape[1])
    seen = (causal & (sequence[:, None] == sequence))[None, None]
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    logits = model(input_ids=ids, position_ids=positions, attention_mask=mask).logits
    torch.nn.functional.cross_entropy(logits[0].float(), ids[0]).backward()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return kept(tmp_path_factory.mktemp("runs") / "reference")


def output_hook(name: str, change: Any) -> Edit:
    def edit(model: Any) -> None:
        def hook(module: Any, args: Any, output: Tensor) -> Tensor:
            changed = output.clone()
            change(changed)
            return changed

        model.get_submodule(name).register_forward_hook(hook)

    return edit


def scale_head(output: Tensor) -> None:
    output[..., 32:48] *= 1.1


def scale_block(output: Tensor) -> None:
    output[..., 48:96] *= 1.1


def scale_first(output: Tensor) -> None:
    output[:, 0] *= 1.1


FAULTS = [
    (Q, scale_head, "heads 2 of 4; all 34 tokens"),
    (
        "model.layers.1.mlp.up_proj",
        scale_block,
        "features 48-95 of 96 (just those of tensor-parallel rank 1 of 2); all 34 tokens",
    ),
    (Q, scale_first, "4 of 4 heads; the first token of every sequence, and no other"),
]


@pytest.mark.parametrize(("module", "change", "said"), FAULTS)
def test_the_heads_features_and_tokens_that_differ_are_named(
    reference: RunData, tmp_path: Path, module: str, change: Any, said: str
) -> None:
    result = compare(reference, kept(tmp_path / "run", output_hook(module, change)))
    (finding,) = result.findings
    assert f"first at {module}, " in finding.title.en
    assert said in finding.why.en


HEAD_2, FIRST = {(2, column) for column in range(16)}, {(row, 0) for row in range(4)}


@pytest.mark.parametrize(("change", "cells"), [(scale_head, HEAD_2), (scale_first, FIRST)])
def test_a_grid_shows_the_heads_and_positions_that_differ(
    reference: RunData, tmp_path: Path, change: Any, cells: set[tuple[int, int]]
) -> None:
    result = compare(reference, kept(tmp_path / "run", output_hook(Q, change)))
    (grid,) = result.grids
    assert (grid.down.en, grid.across.en) == ("head", "position in the sequence")
    assert (grid.rows, len(grid.columns)) == (("0", "1", "2", "3"), 16)
    beyond = [
        (i, j) for i, row in enumerate(grid.errors) for j, e in enumerate(row) if e > grid.limit
    ]
    assert set(beyond) == cells
    assert grid.errors[2][0] == pytest.approx(0.1, rel=1e-4)


def test_a_wide_tensor_is_shown_by_blocks_of_its_features(
    reference: RunData, tmp_path: Path
) -> None:
    module = "model.layers.1.mlp.up_proj"
    result = compare(reference, kept(tmp_path / "run", output_hook(module, scale_block)))
    (grid,) = result.grids
    assert grid.rows[:2] + grid.rows[-1:] == ("0-2", "3-5", "93-95")
    departs = [max(row) > grid.limit for row in grid.errors]
    assert departs == [False] * 16 + [True] * 16


def scaled_gradient(name: str) -> Edit:
    """Scale the gradient of one head of a module's output, and leave its output."""

    def edit(model: Any) -> None:
        def scaled(gradient: Tensor) -> Tensor:
            changed = gradient.clone()
            changed[..., 32:48] *= 1.1
            return changed

        def hook(module: Any, args: Any, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(scaled)

        model.get_submodule(name).register_forward_hook(hook)

    return edit


def test_a_gradient_kept_whole_shows_the_head_whose_backward_differs(
    reference: RunData, tmp_path: Path
) -> None:
    result = backward_rung.compare(reference, kept(tmp_path / "run", scaled_gradient(Q)))
    (finding,), (grid,) = result.findings, result.grids
    assert f"at the output of {Q}, " in finding.title.en
    # the softmax of a first token is over one key, so that no gradient reaches its query
    assert "heads 2 of 4; all tokens from position 1" in finding.why.en
    assert [max(row) > grid.limit for row in grid.errors] == [False, False, True, False]
    rows = tensors_table(result, "backward_tensors")
    assert {phase for _, phase in rows} == {"gradient"}
    clean = backward_rung.compare(reference, kept(tmp_path / "clean"))
    assert (clean.status, clean.findings, clean.grids) == (RungStatus.ALIGNED, (), ())


def tensors_table(
    result: RungResult, name: str = "forward_tensors"
) -> dict[tuple[str, str], dict[str, Any]]:
    (table,) = [table for table in result.tables if table.id == name]
    names = [column.key for column in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    return {(str(row["module"]), str(row["phase"])): row for row in rows}


def test_exact_measures_are_those_of_the_planted_factor(reference: RunData, tmp_path: Path) -> None:
    def double(output: Tensor) -> None:
        output *= -2

    result = compare(reference, kept(tmp_path / "run", output_hook(Q, double)))
    row = tensors_table(result)[Q, "forward"]
    assert row["relative_error"] == pytest.approx(3.0, rel=1e-6)
    assert row["cosine"] == pytest.approx(-1.0, abs=1e-6)
    assert row["sign_flips"] == 34 * 64
    assert row["alone"] == 0


@pytest.mark.parametrize("how", [{"side": "left"}, {"packed": True}])
def test_padding_and_packing_are_no_difference(
    reference: RunData, tmp_path: Path, how: dict[str, Any]
) -> None:
    run = kept(tmp_path / "run", **how)
    result = compare(reference, run)
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
    backward = backward_rung.compare(reference, run)
    rows = {**tensors_table(result), **tensors_table(backward, "backward_tensors")}
    assert {phase for _, phase in rows} == {"forward", "input", "gradient"}
    assert all(row["alone"] == 0 for row in rows.values())
    assert max(row["relative_error"] for row in rows.values()) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_is_what_the_module_computed(tmp_path: Path, dtype: torch.dtype) -> None:
    seen = {}

    def look(model: Any) -> None:
        def hook(module: Any, args: Any, output: Tensor) -> None:
            seen["input"], seen["forward"] = args[0].detach(), output.detach()

        model.model.norm.register_forward_hook(hook)

    run = kept(tmp_path / "run", look, dtype=dtype)
    (file,) = run.tensor_files
    parts = {part.phase: part for part in file.parts if part.name == "model.norm"}
    attended = batch()["attention_mask"].bool()
    for phase, tensor in seen.items():
        expected = tensor[attended]
        stored = np.array(parts[phase].values())
        if dtype is torch.bfloat16:
            assert torch.equal(torch.from_numpy(stored.view(np.int16)), expected.view(torch.int16))
        else:
            assert np.array_equal(stored, expected.numpy())
    assert parts["forward"].tokens.places.tolist() == batch()["position_ids"][attended].tolist()


def test_keeping_tensors_changes_no_bit_of_training(tmp_path: Path) -> None:
    gradients = []
    for patterns in ((), ("*",)):
        model = tiny_qwen2()
        log = FailureLog(tmp_path, "test")
        with sketched_step(model, tmp_path / str(len(patterns)), 1, log, whole=patterns):
            loss_of(model, batch()).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_no_more_is_kept_than_fits_and_the_capture_says_so(tmp_path: Path) -> None:
    model = tiny_qwen2()
    log = FailureLog(tmp_path, "test")
    with sketched_step(model, tmp_path, 1, log, whole=("*",)) as recorder:
        recorder.whole = WholeTensors(("*",), most_bytes=20_000)
        loss_of(model, batch())
    assert 0 < recorder.whole.num_bytes <= 20_000
    assert any("not kept whole" in problem for problem in recorder.problems)


def test_a_perturbed_run_says_that_it_is_no_side_of_a_comparison(tmp_path: Path) -> None:
    write_manifest(tmp_path, RunManifest(notes=("perturbed: embeddings moved",)))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {"loss": 1.0}}\n')
    (problem,) = RunData(discover([tmp_path])).problems
    assert "--noise" in problem.fix


def test_the_stack_keeps_what_a_capture_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = CapturePlan(
        tmp_path / "plan", (What.SKETCHES,), steps=((2, 2),), tensors=("model.norm",)
    )
    monkeypatch.setenv(VARIABLE, str(write_plan(plan)))
    sketches = Sketches(tmp_path / "run", 9, is_on=False)
    model = tiny_qwen2()
    for step in (1, 2):
        with sketches.step(model, step):
            loss_of(model, batch()).backward()
    (file,) = RunData(discover([tmp_path / "run"])).tensor_files
    assert (file.step, {part.name for part in file.parts}) == (2, {"model.norm"})
