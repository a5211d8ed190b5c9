"""A recorded run: two steps of the real verl 0.9.1 V1 with a vLLM rollout on a CPU, captured.

`tests/data/verl_vllm_run` is what `align capture` wrote of it (docs/how-to/capture.md has the
command), without versions and variables, which name a machine. Model and engine compute in float32.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="rollouts are read from Parquet")
pytest.importorskip("safetensors", reason="tensors are read from safetensors")

import numpy as np
import pyarrow.parquet as pq

from align.core.rung import Rung, RungStatus
from align.ladder import climb
from dumps.readers import captured_step
from dumps.readers.trainer_inputs import read as read_inputs
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.verify import verify

RUN = Path(__file__).resolve().parents[1] / "data" / "verl_vllm_run"
STEPS = (1, 2)
EOS, LONGEST = 2, 16  # <|im_end|> of the tiny tokenizer; data.max_response_length
VOCABULARY = 371
NOISE_NATS = 4e-6  # four steps of float32 at 8 nats; one (9.5e-7) is the most in this run


def rollouts(step: int) -> list[dict]:
    return pq.read_table(RUN / f"rollout/step={step:06d}.parquet").to_pylist()


def test_the_recorded_run_is_whole() -> None:
    verified = verify(RUN)
    assert verified.is_whole and verified.whole_steps == STEPS


def test_every_response_has_ids_and_vllms_log_probs() -> None:
    for step in STEPS:
        rows = rollouts(step)
        assert len(rows) == 8 * 4  # train_batch_size x n
        for row in rows:
            ids, log_probs = row["response_ids"], row["log_probs"]
            assert 1 <= len(ids) == len(log_probs) <= LONGEST
            assert all(0 <= i < VOCABULARY for i in ids)
            assert all(-20 < value < 0 for value in log_probs)
            assert EOS not in ids[:-1]


def test_finish_reasons_follow_from_eos_and_the_limit() -> None:
    rows = [row for step in STEPS for row in rollouts(step)]
    for row in rows:
        ended = row["response_ids"][-1] == EOS
        assert row["finish_reason"] == ("stop" if ended else "length")
        assert ended or len(row["response_ids"]) == LONGEST
    assert {row["finish_reason"] for row in rows} <= {"stop", "length"}


def test_the_trainer_finds_the_log_probs_that_vllm_gave() -> None:
    for step in STEPS:
        batch = read_inputs(RUN / f"trainer_inputs/{step:06d}.safetensors", lambda _: None)
        mask = batch.tensor("response_mask")
        engine, trainer = batch.tensor("rollout_log_probs"), batch.tensor("old_log_probs")
        assert mask is not None and engine is not None and trainer is not None
        own = mask != 0
        difference = np.abs(trainer[own].astype(np.float64) - engine[own])
        assert difference.max() < NOISE_NATS
        by_row = {tuple(row["response_ids"]): row["log_probs"] for row in rollouts(step)}
        responses = batch.tensor("responses")
        assert responses is not None
        for ids, seen, values in zip(responses, own, engine, strict=True):
            assert by_row[tuple(ids[seen].tolist())] == values[seen].tolist()


def test_the_first_update_of_a_step_is_on_policy() -> None:
    for step in STEPS:
        part = captured_step.read(RUN / f"steps/{step:06d}/actor-0.safetensors")
        old, new, mask = (
            part.tensors[f"update.0.micro.0.{name}"].astype(np.float64)
            for name in ("old_log_probs", "log_probs", "response_mask")
        )
        assert np.abs(new - old)[mask != 0].max() < NOISE_NATS


def test_a_report_of_the_run_against_itself_is_clean() -> None:
    data = RunData(discover([RUN]))
    statuses = {rung.name: rung.status for rung in climb(data, RunData(discover([RUN]))).rungs}
    for rung in (Rung.CONFIG, Rung.ROLLOUT, Rung.TOKENS, Rung.ADVANTAGE, Rung.LOSS):
        assert statuses[rung] is RungStatus.ALIGNED
    assert RungStatus.DIVERGED not in statuses.values()
