"""Step times are broken down, and throughput is computed, as the field reports do it."""

from __future__ import annotations

from pathlib import Path

import pytest

from align.doctor.capacity import capacity
from align.doctor.case import case_of, machine_of
from align.doctor.examine import examine
from align.doctor.throughput import BatchShape, throughput, tokens_per_second
from align.doctor.timing import Stage, step_time
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.one_run_alone import log_of, one_run_with

TIMES = {
    "timing_s/step": [100.0, 20.0, 20.0, 40.0],
    "timing_s/gen": [90.0, 10.0, 10.0, 20.0],
    "timing_s/update_actor": [5.0, 4.0, 4.0, 8.0],
    "timing_s/update_critic": [1.0, 1.0, 1.0, 2.0],
    "timing_s/old_log_prob": [1.0, 2.0, 2.0, 4.0],
    "timing_s/ref": [1.0, 1.0, 1.0, 2.0],
    "timing_s/reward": [0.5, 0.25, 0.25, 0.5],
    "timing_s/adv": [0.5, 0.25, 0.25, 0.5],
}


def test_the_step_is_broken_down_by_hand_calculation() -> None:
    time = step_time(log_of(TIMES))
    assert time is not None
    assert (time.seconds, time.num_steps, time.skips_first) == (20.0, 3, True)
    shares = {part.stage: part.share for part in time.parts}
    assert shares == pytest.approx(
        {
            Stage.GENERATE: 0.5,
            Stage.UPDATE: 0.25,
            Stage.OLD_LOG_PROB: 0.1,
            Stage.REF: 0.05,
            Stage.REWARD: 0.025,
            Stage.OTHER: 0.075,
        }
    )
    assert [part.stage for part in time.parts][:2] == [Stage.GENERATE, Stage.UPDATE]
    assert time.slowest is not None and time.slowest.stage is Stage.GENERATE
    assert (time.longest_generation, time.overlapping) == (90.0, False)


def test_stages_that_add_up_to_more_than_the_step_are_said_to_overlap() -> None:
    time = step_time(log_of({**TIMES, "timing_s/ref": [20.0, 20.0, 20.0, 40.0]}))
    assert time is not None and time.overlapping
    assert time.share_of(Stage.OTHER) == 0.0


def test_what_is_covered_by_generation_is_not_counted_twice() -> None:
    covered = {**TIMES, "timing/non_overlap_reference_model": [0.0] * 4, "timing_s/ref": [9.0] * 4}
    time = step_time(log_of(covered))
    assert time is not None and time.share_of(Stage.REF) == 0.0


def test_without_a_step_time_nothing_is_broken_down() -> None:
    assert step_time(log_of({"timing_s/gen": [1.0, 2.0]})) is None
    assert step_time(log_of({})) is None


def test_throughput_is_the_formula_of_the_report() -> None:
    # (1000 + 24) tokens · 128 prompts · 8 responses / 16 devices / 64 s, by hand: 1024.
    assert tokens_per_second(1024, 128, 8, 16, 64) == 1024.0
    log = log_of(
        {
            "response_length/mean": [1.0, 1000.0, 1000.0],
            "prompt_length/mean": [1.0, 24.0, 24.0],
            "timing_s/step": [64.0, 64.0, 64.0],
            "perf/throughput": [7.0, 1024.0, 1024.0],
        }
    )
    rate = throughput(log, BatchShape(128, 8, 16))
    assert rate is not None
    assert (rate.computed, rate.logged, rate.agrees) == (1024.0, 1024.0, True)
    assert rate.per_a3_card == 2048.0
    other = throughput(log, BatchShape(128, 8, 8))
    assert other is not None and other.agrees is False


@pytest.mark.parametrize("shape", [BatchShape(None, 8, 16), BatchShape(0.0, 8, 16)])
def test_a_missing_factor_is_named_instead_of_guessed(shape: BatchShape) -> None:
    log = log_of(
        {
            "response_length/mean": [1.0, 1.0],
            "prompt_length/mean": [1.0, 1.0],
            "timing_s/step": [2.0, 2.0],
        }
    )
    rate = throughput(log, shape)
    assert rate is not None
    assert (rate.computed, rate.unknown) == (None, ("prompts a step",))


def test_the_factors_that_mindspeed_rl_logs_are_used() -> None:
    log = log_of(
        {
            "response_length/mean": [1000.0] * 2,
            "prompt_length/mean": [24.0] * 2,
            "timing_s/step": [64.0] * 2,
            "global_batch_size": [128.0] * 2,
            "n_samples_per_prompt": [8.0] * 2,
            "world_size": [16.0] * 2,
        }
    )
    case = case_of(one_run_with({}, framework="mindspeed_rl"), log)
    assert case.rate is not None and case.rate.computed == 1024.0


def test_the_largest_micro_batch_is_that_of_the_report() -> None:
    # 16 cards, TP 2 to TP 4: the report's rollout micro-batch went from 256 to 512.
    before, after = capacity(256, 8, 16, 2, 1), capacity(256, 8, 16, 4, 1)
    assert before is not None and after is not None
    assert (before.replicas, before.sequences) == (8, 256)
    assert (after.replicas, after.sequences) == (4, 512)
    odd = capacity(100, 1, 16, 2, 1)
    assert odd is not None and not odd.is_whole
    assert capacity(256, 8, 2, 4, 1) is None


@pytest.mark.parametrize(
    ("name", "machine"),
    [("Ascend 910B3", "a2"), ("Ascend910_9391", "a3"), ("NVIDIA H100", None), (None, None)],
)
def test_the_machine_is_told_by_its_chip(name: str | None, machine: str | None) -> None:
    assert machine_of(name) == machine


@pytest.mark.parametrize(
    ("log", "num_steps", "tolerance"),
    [
        ("dapo_gpu_v05_201steps_invalid_utf8.out", 199, 1e-6),
        ("grpo_gpu_v08_110steps_tqdm.txt", 108, 1e-6),
        ("grpo_npu_sync_repeat_a.txt", 57, 1e-12),
        ("grpo_npu_sync_repeat_b.txt", 57, 1e-12),
        ("ppo_gpu_v03_resumed_at_101.log", 334, 1e-4),  # printed with three decimals
    ],
)
def test_the_formula_gives_what_real_runs_logged(
    corpus: Path, log: str, num_steps: int, tolerance: float
) -> None:
    case = examine(RunData(discover([corpus / "verl_logs" / log]))).case
    assert case is not None and case.rate is not None
    assert case.rate.num_steps == num_steps
    assert case.rate.disagreement is not None and case.rate.disagreement <= tolerance
    assert case.time is not None and not case.time.overlapping
    other = case.time.share_of(Stage.OTHER)
    assert other is not None and other < 0.02  # the named stages are nearly the whole step


def test_the_real_mindspeed_rl_log_is_broken_down(corpus: Path) -> None:
    path = corpus / "mindspeed_rl" / "log_grpo_qwen25_7b_3iterations.txt"
    case = examine(RunData(discover([path]))).case
    assert case is not None and case.time is not None
    # Iteration 2 by hand: 18.7366698731 / 24.6265943651 generated, 2.1594598519 updated.
    assert case.time.seconds == pytest.approx(24.6265943651087582)
    assert case.time.share_of(Stage.GENERATE) == pytest.approx(18.7366698731 / 24.6265943651)
    assert case.time.share_of(Stage.UPDATE) == pytest.approx(2.1594598519 / 24.6265943651)
    assert case.rate is not None and case.rate.computed is None  # no batch size is stated
