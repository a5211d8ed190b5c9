"""What a capture computes of tensors, against closed forms, float64 and whole tensors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch
from torch import nn

from align.core.rollout_record import RolloutRecord
from dumps.capture.describe import stop_ids
from dumps.capture.device import copied
from dumps.capture.failures import FailureLog
from dumps.capture.gradients import gradient_squares, plain_name
from dumps.capture.invariants import broken_in_batch, broken_in_update
from dumps.capture.module_stats import ModuleOutput, hook_modules, statistics
from dumps.capture.padding import joined, padded
from dumps.capture.plan import CapturePlan, What
from dumps.capture.rng import rng_hashes
from dumps.capture.step_batch import StepBatch, files_of
from dumps.capture.update_record import UpdateRecord, writes
from dumps.readers.captured_step import read

EOS = 9


def rows(*lengths: int) -> list[torch.Tensor]:
    return [torch.arange(1, length + 1) for length in lengths]


def test_prompts_are_padded_left_and_responses_right() -> None:
    assert padded(rows(2, 3), 0, left=True).tolist() == [[0, 1, 2], [1, 2, 3]]
    assert joined(rows(1, 2), rows(3, 1), 7).tolist() == [[7, 1, 1, 2, 3], [1, 2, 1, 7, 7]]


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5), left=st.booleans())
def test_padding_keeps_every_row(lengths: list[int], left: bool) -> None:
    given_rows = rows(*lengths)
    matrix = padded(given_rows, -1, left=left)
    assert [row[row != -1].tolist() for row in matrix] == [row.tolist() for row in given_rows]


def test_gradient_squares_are_those_of_float64() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    model(torch.randn(5, 3)).square().sum().backward()
    names, squares = gradient_squares(model.named_parameters())
    assert names == ["0.weight", "0.bias", "1.weight"]
    gradients = [p.grad.numpy() for p in model.parameters() if p.grad is not None]
    expected = [float((g.astype(np.float64) ** 2).sum()) for g in gradients]
    assert squares.tolist() == pytest.approx(expected, rel=1e-12)
    total = float(nn.utils.clip_grad_norm_(model.parameters(), 1e9))
    assert math.sqrt(float(squares.sum())) == pytest.approx(total, rel=1e-6)


def test_a_parameter_without_gradient_is_left_out() -> None:
    assert gradient_squares(nn.Linear(2, 2).named_parameters())[0] == []


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module.mlp", "model.layers.0.mlp"),
        ("module._orig_mod.lm_head.weight", "lm_head.weight"),
        ("model.layers.0.mlp", "model.layers.0.mlp"),
        ("model.layers.0._checkpoint_wrapped_module", "model.layers.0"),
    ],
)
def test_wrappers_are_taken_out_of_names(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_module_statistics_are_those_of_numpy_and_count_nan() -> None:
    tensor = torch.tensor([[1.0, -4.0], [float("nan"), 2.0]])
    plain = np.array([1.0, -4.0, 2.0])
    expected = [plain.mean(), plain.std(), 4.0, np.linalg.norm(plain), 1.0]
    assert statistics(tensor).tolist() == pytest.approx(expected, rel=1e-12)


def test_hooks_look_at_matching_modules_alone_and_only_when_wanted(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    seen: list[ModuleOutput] = []
    wanted = [True]
    log = FailureLog(tmp_path, "actor-0")
    assert hook_modules(model, "1*", log, lambda: wanted[0], seen.append) == 1
    model(torch.ones(3, 2))
    wanted[0] = False
    model(torch.ones(3, 2))
    assert [(o.name, o.shape, o.dtype) for o in seen] == [("1", (3, 2), "torch.float32")]


def test_a_failing_module_hook_does_not_stop_the_model(tmp_path: Path) -> None:
    def fails(output: ModuleOutput) -> None:
        raise ValueError("broken")

    model = nn.Linear(2, 2)
    hook_modules(model, "*", FailureLog(tmp_path, "actor-0"), lambda: True, fails)
    assert model(torch.ones(1, 2)).shape == (1, 2)
    assert "broken" in (tmp_path / "capture.log").read_text()


def test_reading_generators_draws_nothing() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second = rng_hashes(), rng_hashes()
    assert torch.equal(before, torch.get_rng_state()) and first == second
    torch.rand(1)
    assert rng_hashes()["torch"] != first["torch"] and rng_hashes()["numpy"] == first["numpy"]


def test_a_step_read_back_is_the_one_recorded(tmp_path: Path) -> None:
    record = UpdateRecord()
    for update in range(2):
        for micro in range(2):
            record.begin_micro_batch()
            record.keep({"log_probs": torch.full((1, 2), 10.0 * update + micro), "none": None})
        record.keep_rows(f"update.{update}.gradient_squares", ["w"], torch.tensor([update + 1.0]))
        record.end_update()
    output = ModuleOutput("lm_head", (1, 2), "torch.bfloat16", torch.arange(5.0))
    record.keep_module("actor.train", output)
    path = tmp_path / "actor-3.safetensors"
    writes(record.to_host(), record.notes(7, 3, "actor"))(path)
    step = read(path)
    assert (step.step, step.rank, step.role, step.num_updates) == (7, 3, "actor", 2)
    assert step.tensors["update.1.micro.0.log_probs"].tolist() == [[10.0, 10.0]]
    assert step.gradient_squares(1) == {"w": 2.0}
    assert step.modules[0]["module"] == "lm_head" and step.modules[0]["dtype"] == "bfloat16"
    assert set(step.rng) >= {"python", "torch"}


def test_what_is_kept_does_not_change_with_the_tensor_it_came_from() -> None:
    record, tensor = UpdateRecord(), torch.ones(2, requires_grad=True)
    record.begin_micro_batch()
    record.keep({"log_probs": tensor})
    with torch.no_grad():
        tensor.mul_(5)
    kept = record.to_host()["update.0.micro.0.log_probs"]
    assert kept.tolist() == [1.0, 1.0] and not kept.requires_grad


def test_the_copy_to_the_host_keeps_every_dtype_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {
        "bool": torch.tensor([True, False, True]),
        "bf16": torch.tensor([[1.5], [2.5]], dtype=torch.bfloat16),
        "int": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "strided": torch.arange(6.0).reshape(2, 3).T,
    }
    host = copied(tensors)
    assert all(torch.equal(host[name], tensor) for name, tensor in tensors.items())


@pytest.mark.device
def test_a_step_takes_one_copy_from_the_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    tensors = {
        "bool": torch.tensor([True, False, True]),
        "bf16": torch.tensor([[1.5], [2.5]], dtype=torch.bfloat16),
        "int": torch.tensor(7),
        "float": torch.randn(5, 3, dtype=torch.float64),
    }
    away = {name: tensor.cuda() for name, tensor in tensors.items()}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        host = copied(away)
    copies = [e for e in profile.events() if "DtoH" in e.name]
    assert len(copies) == 1
    assert all(torch.equal(host[name], tensor) for name, tensor in tensors.items())


def batch(**changes: object) -> StepBatch:
    """Two prompts, two responses each, of at most three tokens; healthy."""
    records = [
        RolloutRecord(prompt_ids=(1,), response_ids=ids, uid=uid)
        for uid, ids in (("a", (5, EOS)), ("a", (5, 6, 7)), ("b", (EOS,)), ("b", (6, EOS)))
    ]
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])
    tensors = {"response_mask": mask, "advantages": torch.zeros(4, 3)}
    return StepBatch(3, changes.get("records", records), {**tensors, **changes.get("tensors", {})})  # type: ignore[arg-type, dict-item]


def broken(step: StepBatch) -> list[str]:
    return list(broken_in_batch(step, num_samples=2, eos_ids=frozenset({EOS}), longest=3))


def test_a_healthy_step_breaks_no_invariant() -> None:
    assert broken(batch()) == []
    log_probs = torch.tensor([[-1.0, -2.0]])
    assert list(broken_in_update(log_probs, log_probs + 1e-4, torch.ones(1, 2))) == []


def test_nan_within_the_mask_is_named_and_outside_it_is_not() -> None:
    advantages = torch.zeros(4, 3)
    advantages[0, 2] = float("nan")
    assert broken(batch(tensors={"advantages": advantages})) == []
    advantages[0, 1] = float("nan")
    assert broken(batch(tensors={"advantages": advantages})) == [
        "1 values of advantages are NaN or infinite"
    ]


def test_a_group_of_another_size_is_named() -> None:
    (message,) = broken(batch(records=batch().records[:3]))
    assert message.startswith("1 of 2 prompts have another number of responses than n = 2 (b: 1)")


def test_vanished_eos_is_named() -> None:
    records = [RolloutRecord(response_ids=(5,), uid=uid) for uid in ("a", "a", "b", "b")]
    (message,) = broken(batch(records=records))
    assert message.startswith("eos has vanished: 4 responses")


def test_a_response_may_end_with_any_id_that_generation_stops_at(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [151645, 151643]}')
    assert stop_ids(7, str(tmp_path)) == {7, 151645, 151643}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert stop_ids(None, str(tmp_path)) == {5}
    assert stop_ids(7, "org/model") == {7} and stop_ids(None, None) == frozenset()


def test_responses_that_are_all_cut_are_no_vanished_eos() -> None:
    records = [RolloutRecord(response_ids=(5, 6, 7), uid=uid) for uid in ("a", "a", "b", "b")]
    assert broken(batch(records=records)) == []


def test_a_ratio_that_is_not_one_before_any_update_is_named() -> None:
    old = torch.log(torch.tensor([[0.5, 0.4]]))
    new = torch.log(torch.tensor([[0.48, 0.4]]))
    (message,) = broken_in_update(old, new, torch.ones(1, 2))
    assert "moved by 0.01" in message
    assert list(broken_in_update(old, new, torch.tensor([[0, 1]]))) == []


def test_a_plan_decides_which_files_a_step_becomes(tmp_path: Path) -> None:
    names = ("input_ids", "attention_mask", "responses", "advantages")
    step = StepBatch(3, batch().records, {name: torch.zeros(4, 3) for name in names})
    assert set(files_of(step, CapturePlan(tmp_path), rank=1)) == {
        "rollout/rank=1/step=000003.parquet",
        "trainer_inputs/rank=1/000003.safetensors",
    }
    assert set(files_of(step, CapturePlan(tmp_path, (What.ROLLOUTS,)))) == {
        "rollout/step=000003.parquet"
    }
    assert files_of(step, CapturePlan(tmp_path, (What.RNG,))) == {}
