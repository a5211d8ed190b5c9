"""Backward, update and weight sync rungs: planted bugs are named, rounding is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch
from safetensors.torch import save_file

from align.core.finding import Severity
from align.core.rung import RungStatus
from align.layers import backward_rung, update_rung, weight_sync_rung
from align.stack import numerics
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import (
    parameters_of,
    record_gradients,
    record_moments,
    record_parameters,
    record_update,
)
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.unit.layer_runs import Edit, batch, loss_of, recorded, tiny_qwen2


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Give the untouched model's run."""
    return recorded(tmp_path_factory.mktemp("reference"))


def detached(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, x, output: output.detach())


def detached_input(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    own = mlp.forward
    mlp.forward = lambda x: own(x.detach())


def frozen(model: Any) -> None:
    matrix = model.model.layers[1].mlp.up_proj
    matrix.forward = lambda x: torch.nn.functional.linear(x, matrix.weight.detach())


def half_of_a_norm(model: Any) -> None:
    norm = model.model.layers[1].input_layernorm.weight
    norm.register_hook(lambda gradient: gradient * torch.linspace(0, 1, len(gradient)))


def wrong_backward(model: Any) -> None:
    def hook(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        output.register_hook(lambda gradient: gradient.roll(1, -1))
        return output

    model.model.layers[1].mlp.act_fn.register_forward_hook(hook)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            detached,
            "reaches model.layers.1.mlp.down_proj from model.layers.2 in the candidate",
        ),
        (detached_input, "1.post_attention_layernorm from model.layers.1.mlp in the candidate"),
        (frozen, "get no gradient on one side: first model.layers.1.mlp.up_proj.weight in the"),
        (half_of_a_norm, "first model.layers.1.input_layernorm.weight"),
        (wrong_backward, "first at the output of model.layers.1.mlp"),
    ],
)
def test_a_planted_bug_is_named_by_its_place(
    reference: RunData, tmp_path: Path, edit: Edit, said: str
) -> None:
    (finding,) = backward_rung.compare(reference, recorded(tmp_path, edit)).findings
    assert finding.id == "backward.first_divergence"
    assert said in finding.title.en


def test_a_loss_scaled_before_backward_is_one_factor(reference: RunData, tmp_path: Path) -> None:
    (finding,) = backward_rung.compare(reference, recorded(tmp_path, scale=0.25)).findings
    assert finding.id == "backward.scale"
    assert "every gradient is 0.25 times" in finding.title.en


@pytest.mark.parametrize("profile", ["float32_split_k", "float32_bfloat16_all_reduce", "float64"])
def test_rounding_is_no_difference(reference: RunData, tmp_path: Path, profile: str) -> None:
    result = backward_rung.compare(
        reference, recorded(tmp_path, lambda model: numerics.apply(profile, model))
    )
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), result.summary.en


def trained(folder: Path, **wrong: Any) -> RunData:
    """Record three steps with an engine; ``wrong`` says what goes wrong in them."""
    model, engine = tiny_qwen2(), tiny_qwen2()
    vectors = [p for p in model.parameters() if p.ndim == 1]
    others = [p for p in model.parameters() if p.ndim > 1]
    decay = wrong.get("decay_of_vectors", 0.1)
    optimizer = torch.optim.AdamW(
        [{"params": vectors, "weight_decay": decay}, {"params": others}],
        lr=wrong.get("lr", 1e-3),
        betas=wrong.get("betas", (0.9, 0.999)),
        weight_decay=0.1,
    )
    earlier: dict[str, torch.Tensor] = {}
    for step in (1, 2, 3):
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        given = wrong.get("sync", lambda now, before: now)(weights, earlier)
        engine.load_state_dict(given)
        earlier = weights
        with sketched_step(model, folder, step, FailureLog(folder, "test")) as recorder:
            record_parameters(recorder, model, Phase.PARAMETER)
            record_parameters(recorder, engine, Phase.ENGINE)
            loss_of(model, batch()).backward()
            record_gradients(recorder, model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), wrong.get("clip", 1e9))
            before = parameters_of(model)
            for group in optimizer.param_groups:
                group["lr"] = 0.0 if step <= wrong.get("still", 0) else wrong.get("lr", 1e-3)
            if step != wrong.get("skipped"):
                optimizer.step()
            if "round" in wrong:
                for state in optimizer.state.values():
                    state["exp_avg"].copy_(state["exp_avg"].bfloat16())
            record_update(recorder, model, before)
            record_moments(recorder, model, optimizer)
            optimizer.zero_grad()
    return RunData(discover([folder]))


@pytest.mark.parametrize(
    ("wrong", "finding_id", "said"),
    [
        ({"decay_of_vectors": 0.0}, "optimizer.weight_decay", "16 1-D parameters decay less in"),
        ({"lr": 2e-3}, "optimizer.update", "equal gradients become other updates"),
        ({"clip": 0.01}, "optimizer.clipping", "what reaches the optimizer is"),
        ({"round": True}, "optimizer.state_dtype", "bfloat16 numbers alone in the candidate"),
        ({"betas": (0.9, 0.95)}, "optimizer.betas", "exp_avg_sq is 50 times the reference's"),
        ({"betas": (0.8, 0.999)}, "optimizer.betas", "exp_avg is 2 times the reference's"),
        ({"skipped": 3}, "optimizer.no_update", "update 0 of step 3 changes no weight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_update_of_equal_gradients_is_explained(
    tmp_path: Path, wrong: dict[str, Any], finding_id: str, said: str
) -> None:
    result = update_rung.compare(trained(tmp_path / "own"), trained(tmp_path / "other", **wrong))
    assert result is not None
    (finding,) = result.findings
    assert finding.id == finding_id
    assert said in finding.title.en


def twice_updated(folder: Path, *, forgets: bool = False) -> RunData:
    """Record a step of two updates on the same rows; the optimizer may forget the first."""
    model = tiny_qwen2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with sketched_step(model, folder, 1, FailureLog(folder, "test")) as recorder:
        record_parameters(recorder, model, Phase.PARAMETER)
        for update in range(2):
            recorder.update = update
            optimizer.zero_grad()
            loss_of(model, batch()).backward()
            record_gradients(recorder, model)
            before = parameters_of(model)
            optimizer.step()
            record_update(recorder, model, before)
            record_moments(recorder, model, optimizer)
            if forgets:
                optimizer.state.clear()
    return RunData(discover([folder]))


def test_a_later_update_is_compared_where_its_gradients_agree(tmp_path: Path) -> None:
    own, other = twice_updated(tmp_path / "own"), twice_updated(tmp_path / "other", forgets=True)
    result = update_rung.compare(own, other)
    assert result is not None
    (finding,) = result.findings
    assert finding.id == "optimizer.update"
    assert "other updates at update 1" in finding.title.en
    again = update_rung.compare(own, twice_updated(tmp_path / "again"))
    assert again is not None and again.findings == ()


def test_gradients_that_a_later_step_keeps_are_named_at_that_step(tmp_path: Path) -> None:
    def kept(folder: Path, *, keeps: bool) -> RunData:
        model = tiny_qwen2()
        for step in (1, 2):
            if not keeps:
                model.zero_grad()
            with sketched_step(model, folder, step, FailureLog(folder, "test")) as recorder:
                record_parameters(recorder, model, Phase.PARAMETER)
                loss_of(model, batch(seed=step)).backward()
                record_gradients(recorder, model)
        return RunData(discover([folder]))

    own = kept(tmp_path / "own", keeps=False)
    (finding,) = backward_rung.compare(own, kept(tmp_path / "other", keeps=True)).findings
    assert finding.id == "backward.first_divergence"
    assert finding.evidence[0].key == "step 2, update 0"
    assert backward_rung.compare(own, kept(tmp_path / "again", keeps=False)).findings == ()


def in_bfloat16(folder: Path, parts: list[list[int]], *, loses: bool = False) -> RunData:
    """Record a step under autocast, whose rows come in micro-batches; gradients are float32.

    Args:
        loses: the first micro-batches' gradients are lost.
    """
    model, whole = tiny_qwen2(), batch()
    count = int(whole["attention_mask"].sum())
    with sketched_step(model, folder, 1, FailureLog(folder, "test")) as recorder:
        record_parameters(recorder, model, Phase.PARAMETER)
        for rows in parts:
            if loses:
                model.zero_grad()
            micro = {name: tensor[rows] for name, tensor in whole.items()}
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, micro)
            (loss * int(micro["attention_mask"].sum()) / count).backward()
        record_gradients(recorder, model)
    return RunData(discover([folder]))


def test_gradients_rounded_to_bfloat16_micro_batch_by_micro_batch_are_no_difference(
    tmp_path: Path,
) -> None:
    one, parts = in_bfloat16(tmp_path / "a", [[0, 1, 2]]), [[0], [1], [2]]
    result = backward_rung.compare(one, in_bfloat16(tmp_path / "b", parts))
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
    lost = in_bfloat16(tmp_path / "c", parts, loses=True)
    (finding,) = backward_rung.compare(one, lost).findings
    assert finding.id == "backward.first_divergence"


def test_an_embedding_that_leaves_out_the_token_it_pads_with_is_explained(tmp_path: Path) -> None:
    def pads(model: Any) -> None:
        model.model.embed_tokens.padding_idx = 10

    runs = recorded(tmp_path / "a", pads), recorded(tmp_path / "b")
    for name in "ab":
        tiny_qwen2(pad_token_id=10).config.save_pretrained(tmp_path / name / "model")
        (tmp_path / name / "trainer_inputs").mkdir()
        inputs = batch()
        own = {
            "responses": inputs["input_ids"].clone(),
            "response_mask": inputs["attention_mask"].clone(),
        }
        save_file({**inputs, **own}, tmp_path / name / "trainer_inputs/1.safetensors")
    assert 10 in batch()["input_ids"][batch()["attention_mask"] == 1]
    (unexplained,) = backward_rung.compare(*runs).findings
    assert unexplained.id == "backward.first_divergence"
    run, other = (RunData(discover([tmp_path / name])) for name in "ab")
    result = backward_rung.compare(run, other)
    assert result.status is RungStatus.UNDECIDED
    (finding,) = result.findings
    assert (finding.id, finding.severity) == ("backward.padding_row", Severity.WARNING)
    assert "token 10" in finding.title.en


def test_equal_updates_are_aligned_and_engines_in_sync(tmp_path: Path) -> None:
    runs = trained(tmp_path / "own"), trained(tmp_path / "other")
    update = update_rung.compare(*runs)
    assert update is not None
    assert (update.status, update.findings) == (RungStatus.ALIGNED, ())
    sync = weight_sync_rung.compare(*runs)
    assert (sync.status, sync.findings) == (RungStatus.ALIGNED, ())


@pytest.mark.parametrize(("rows", "status"), [(2, RungStatus.MISSING), (3, RungStatus.ALIGNED)])
def test_gradients_of_other_rows_of_the_same_step_are_not_compared(
    tmp_path: Path, rows: int, status: RungStatus
) -> None:
    def run(folder: Path, count: int) -> RunData:
        model, whole = tiny_qwen2(), batch()
        with sketched_step(model, folder, 1, FailureLog(folder, "test")) as recorder:
            with torch.no_grad():
                model(**whole)
            loss_of(model, {name: tensor[:count] for name, tensor in whole.items()}).backward()
            record_gradients(recorder, model)
        return RunData(discover([folder]))

    result = backward_rung.compare(run(tmp_path / "own", 3), run(tmp_path / "other", rows))
    assert result.status is status
    assert ("other rows" in result.summary.en) == (rows == 2)


Weights = dict[str, torch.Tensor]


def never(now: Weights, before: Weights) -> Weights:
    return dict(tiny_qwen2().state_dict())


def late(now: Weights, before: Weights) -> Weights:
    return before or now


def swapped(now: Weights, before: Weights) -> Weights:
    """Cut [q; k; v] at other places, as a fused tensor of another layout is."""
    for number in range(3):
        names = [f"model.layers.{number}.self_attn.{part}_proj.weight" for part in "qkv"]
        fused = torch.cat([now[name] for name in names]).roll(8, 0)
        pieces = fused.split([len(now[name]) for name in names])
        now = {**now, **dict(zip(names, pieces, strict=True))}
    return now


def scaled(now: Weights, before: Weights) -> Weights:
    return {**now, "lm_head.weight": now["lm_head.weight"] * 1.01}


def rounded(now: Weights, before: Weights) -> Weights:
    return {name: tensor.bfloat16().float() for name, tensor in now.items()}


def nudged(now: Weights, before: Weights) -> Weights:
    """Change a tensor by little, so that its statistics are almost those it had."""
    weight = now["lm_head.weight"]
    signs = 1 - 2 * (torch.arange(weight.numel()) % 2)
    return {**now, "lm_head.weight": weight * (1 + 4e-6 * signs.view_as(weight))}


@pytest.mark.parametrize(
    ("sync", "kind", "said"),
    [
        (never, "not_synced", "39/39 parameters at step 3, those of step 1"),
        (late, "stale", "39/39 parameters at step 3, those of step 2"),
        (swapped, "permuted", "9/39 parameters at step 1"),
        (scaled, "scaled", "1/39 parameters at step 1, 1.01 times"),
        (nudged, "differs", "1/39 parameters at step 1"),
        (rounded, "rounded", "parameters at step 1"),
    ],
)
def test_an_engine_with_other_weights_is_told_what_it_holds(
    tmp_path: Path, sync: Any, kind: str, said: str
) -> None:
    own, other = trained(tmp_path / "own"), trained(tmp_path / "other", sync=sync)
    (finding,) = weight_sync_rung.compare(own, other).findings
    assert finding.id == f"weight_sync.{kind}"
    assert said in finding.title.en
    assert "in the candidate" in finding.title.en
    (finding,) = weight_sync_rung.compare(other, own).findings
    assert "in the reference" in finding.title.en


def test_a_warm_up_from_zero_hides_neither_decay_nor_sync(tmp_path: Path) -> None:
    own = trained(tmp_path / "own", still=1)
    other = trained(tmp_path / "other", still=1, decay_of_vectors=0.0)
    result = update_rung.compare(own, other)
    assert result is not None
    assert [finding.id for finding in result.findings] == ["optimizer.weight_decay"]
    stuck = trained(tmp_path / "stuck", still=1, sync=never)
    (finding,) = weight_sync_rung.compare(own, stuck).findings
    assert finding.id == "weight_sync.not_synced"
