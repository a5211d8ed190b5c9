"""`align capture` on the real TRL: GRPO of a tiny model, two steps on CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is not installed")

from dumps.capture.plan import CapturePlan
from dumps.capture.session import Session
from dumps.capture.taps.trl import _ends, _rows, _sampled
from dumps.capture.taps.trl_loss import look_at_log_probs, look_away
from dumps.readers import captured_step
from dumps.readers.rollout_store import read_store
from dumps.readers.trainer_inputs import read as read_inputs
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.verify import verify


def test_what_trl_logs_and_draws_is_the_same_with_a_capture(grpo_runs: Any) -> None:
    plain, captured, _ = grpo_runs
    assert captured == plain
    assert [row["step"] for row in plain["rows"]][:2] == [1, 2]


def test_every_step_is_whole_and_nothing_failed(grpo_runs: Any) -> None:
    run = grpo_runs[2]
    assert not (run / "capture.log").exists()
    assert verify(run).whole_steps == (1, 2)


def test_rollouts_and_batch_agree_with_what_trl_logs(grpo_runs: Any) -> None:
    plain, _, run = grpo_runs
    rows = list(read_store(run / "rollout/rank=0/step=000001.parquet"))
    lengths = [len(row.response_ids) for row in rows]  # type: ignore[union-attr, arg-type]
    assert len(rows) == 4
    assert np.mean(lengths) == pytest.approx(plain["rows"][0]["completions/mean_length"])
    batch = read_inputs(run / "trainer_inputs/rank=0/000001.safetensors", lambda _: None)
    assert {"input_ids", "attention_mask", "responses", "response_mask", "advantages"} <= set(
        batch.shapes
    )
    mask, advantages = batch.tensor("response_mask"), batch.tensor("advantages")
    assert mask is not None and advantages is not None
    assert mask.sum(axis=1).tolist() == lengths
    # two rewards a group: advantages are opposite, and equal along a response
    assert advantages[:, 0].reshape(2, 2).sum(axis=1) == pytest.approx([0, 0], abs=1e-6)


def test_gradient_norms_of_all_parameters_add_up_to_the_one_trl_logs(grpo_runs: Any) -> None:
    plain, _, run = grpo_runs
    for step in (1, 2):
        part = captured_step.read(run / f"steps/{step:06d}/actor-0.safetensors")
        squares = part.gradient_squares(0)
        assert "model.embed_tokens.weight" in squares and len(squares) > 10
        norm = np.sqrt(sum(squares.values()))
        assert norm == pytest.approx(plain["rows"][step - 1]["grad_norm"], rel=1e-5)


def test_rewards_and_ends_are_those_that_trl_logs(grpo_runs: Any) -> None:
    plain, _, run = grpo_runs
    for step in (1, 2):
        rows = list(read_store(run / f"rollout/rank=0/step={step:06d}.parquet"))
        logged = plain["rows"][step - 1]
        scores = [float(row.score) for row in rows]  # type: ignore[union-attr, arg-type]
        assert np.mean(scores) == pytest.approx(logged["reward"])
        assert [row.extras["score/variety"] for row in rows] == scores  # type: ignore[union-attr]
        cut = [row.finish_reason == "length" for row in rows]  # type: ignore[union-attr]
        assert np.mean(cut) == logged["completions/clipped_ratio"]


def test_the_loss_that_trl_logs_follows_from_what_is_kept_of_it(grpo_runs: Any) -> None:
    plain, _, run = grpo_runs
    for step in (1, 2):
        part = captured_step.read(run / f"steps/{step:06d}/actor-0.safetensors")
        names = ("log_probs", "old_log_probs", "ref_log_prob", "advantages", "response_mask")
        new, old, ref, advantages, mask = (
            part.tensors[f"update.0.micro.0.{name}"].astype(np.float64) for name in names
        )
        ratio, apart = np.exp(new - old), ref - new
        tokens = -advantages * ratio + 0.01 * ratio * (np.exp(apart) - apart - 1)
        loss = (tokens * mask).sum() / mask.sum()
        kept = float(part.tensors["update.0.micro.0.policy_loss"].reshape(-1)[0])
        assert kept == pytest.approx(loss, abs=1e-6)
        assert kept == pytest.approx(plain["rows"][step - 1]["loss"], abs=1e-6)
        assert part.losses_add_up


def test_what_a_row_is_trained_on_is_its_score(grpo_runs: Any) -> None:
    run = grpo_runs[2]
    rows = list(read_store(run / "rollout/rank=0/step=000001.parquet"))
    batch = read_inputs(run / "trainer_inputs/rank=0/000001.safetensors", lambda _: None)
    rewards, mask = batch.tensor("token_level_rewards"), batch.tensor("response_mask")
    assert rewards is not None and mask is not None
    assert rewards.sum(axis=1).tolist() == [row.score for row in rows]  # type: ignore[union-attr]
    assert not rewards[mask == 0].any()


def test_a_row_is_recorded_as_it_was_sampled_whatever_is_made_of_it() -> None:
    output = {
        "prompt_ids": torch.tensor([[0, 5]]),
        "prompt_mask": torch.tensor([[0, 1]]),
        "completion_ids": torch.tensor([[7, 0]]),
        "completion_mask": torch.tensor([[1, 0]]),
    }
    trainer = SimpleNamespace(mask_truncated_completions=False)
    assert _rows(trainer, output) == [((5,), (7,))]
    after = _sampled(Session(CapturePlan(Path())))
    after(([[4, 5]], [[7, 8]], None))
    assert _rows(trainer, output) == [((4, 5), (7, 8))]
    assert _rows(trainer, output) == [((5,), (7,))]  # of one generation alone


def test_padding_that_is_sampled_last_ends_no_response() -> None:
    tokenizer = SimpleNamespace(eos_token_id=2, pad_token_id=0)
    trainer = SimpleNamespace(processing_class=tokenizer)
    assert _ends(trainer) == {2}
    trainer.eos_token_ids = [2, 5]
    assert _ends(trainer) == {2, 5}


def test_a_trainer_keeps_no_hook(tmp_path: Path) -> None:
    class Trainer:
        def _get_per_token_logps_and_entropies(self) -> tuple[int, int]:
            return 1, 2

    trainer = Trainer()
    look_at_log_probs(Session(CapturePlan(tmp_path)), trainer)
    assert vars(trainer) and trainer._get_per_token_logps_and_entropies() == (1, 2)
    look_away(trainer)
    assert not vars(trainer)


def test_the_run_is_known_as_trls(grpo_runs: Any) -> None:
    data = RunData(discover([grpo_runs[2]]))
    assert (data.framework, data.framework_version) == ("trl", "1.16.0")
    assert data.run.unknown == ()
