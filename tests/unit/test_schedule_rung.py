"""The logged learning rate is checked against the schedule a configuration declares."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from align.core.finding import Side
from align.core.rung import Rung, RungResult, RungStatus
from align.ladder import compare_schedules
from dumps.store.discover import discover
from dumps.store.run_data import RunData

STEPS, WARMUP, LR = 20, 5, 1e-3
Rates = Callable[[int], float]


def cosine(after: int) -> float:
    """Warm up over 5 of 20 steps, then half a cosine to 0; the closed form, not our code."""
    if after < WARMUP:
        return LR * after / WARMUP
    return LR * 0.5 * (1 + math.cos(math.pi * (after - WARMUP) / (STEPS - WARMUP)))


def run(
    folder: Path,
    rates: Rates | None,
    *,
    style: str = "cosine",
    warmup: float = 0.25,
    total: int | None = STEPS,
    strategy: str = "fsdp2",
    steps: range = range(1, STEPS + 1),
    configured: bool = True,
) -> RunData:
    (folder / ".hydra").mkdir(parents=True)
    if configured:
        (folder / ".hydra" / "config.yaml").write_text(
            f"""\
trainer: {{total_training_steps: {"null" if total is None else total}, critic_warmup: 0}}
data: {{train_batch_size: 16}}
actor_rollout_ref:
  actor:
    strategy: {strategy}
    ppo_mini_batch_size: 8
    ppo_epochs: 1
    optim: {{lr: {LR}, lr_scheduler_type: {style}, lr_warmup_steps: -1,
      lr_warmup_steps_ratio: {warmup}, min_lr_ratio: 0.0, num_cycles: 0.5}}
"""
        )
    values = {step: {"actor/pg_loss": 0.5} for step in steps}
    if rates is not None:
        values = {step: {**data, "actor/lr": rates(step)} for step, data in values.items()}
    rows = (json.dumps({"step": step, "data": data}) for step, data in values.items())
    (folder / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return RunData(discover([folder]))


def ids(result: RungResult) -> list[str]:
    return [finding.id for finding in result.findings]


def test_two_runs_that_follow_their_schedule_are_aligned(tmp_path: Path) -> None:
    result = compare_schedules(run(tmp_path / "a", cosine), run(tmp_path / "b", cosine))
    assert (result.name, result.status) == (Rung.OPTIMIZER, RungStatus.ALIGNED)


def test_the_run_that_leaves_its_own_schedule_is_named_at_its_first_step(tmp_path: Path) -> None:
    faulty = run(tmp_path / "b", lambda step: cosine(step) if step < 9 else 0.0)
    result = compare_schedules(run(tmp_path / "a", cosine), faulty)
    assert ids(result) == ["optimizer.lr_schedule"]
    first = result.findings[0].evidence[0]
    assert (first.side, first.line, first.values) == (Side.CANDIDATE, 9, (0.0,))
    mirrored = compare_schedules(faulty, run(tmp_path / "c", cosine))
    assert mirrored.findings[0].evidence[0].side is Side.REFERENCE


def test_a_schedule_advanced_by_every_optimizer_step_is_recognised(tmp_path: Path) -> None:
    faulty = run(tmp_path / "b", lambda step: cosine(2 * step))
    result = compare_schedules(run(tmp_path / "a", cosine), faulty)
    assert ids(result) == ["optimizer.lr_schedule"]
    assert "2 times a training step" in result.findings[0].why.en


def test_reading_the_rate_before_the_scheduler_step_is_no_departure(tmp_path: Path) -> None:
    early = run(tmp_path / "b", lambda step: cosine(step - 1))
    result = compare_schedules(run(tmp_path / "a", cosine), early)
    assert (result.status, ids(result)) == (RungStatus.ALIGNED, [])


def test_rounding_and_float32_are_no_departure(tmp_path: Path) -> None:
    rounded = run(tmp_path / "b", lambda step: cosine(step) * (1 + 1e-9))
    result = compare_schedules(run(tmp_path / "a", cosine), rounded)
    assert (result.status, ids(result)) == (RungStatus.ALIGNED, [])


def test_a_resumed_run_is_laid_beside_the_steps_it_logged(tmp_path: Path) -> None:
    late = run(tmp_path / "b", cosine, steps=range(11, STEPS + 1))
    result = compare_schedules(run(tmp_path / "a", cosine), late)
    assert (result.status, ids(result)) == (RungStatus.ALIGNED, [])


def test_different_declared_schedules_are_left_to_the_config_rung(tmp_path: Path) -> None:
    constant = run(tmp_path / "b", lambda step: LR, style="constant", warmup=0.0)
    result = compare_schedules(run(tmp_path / "a", cosine), constant)
    assert (result.status, ids(result)) == (RungStatus.DIVERGED, [])


def test_two_runs_that_leave_their_schedules_alike_are_not_blamed(tmp_path: Path) -> None:
    runs = [run(tmp_path / name, lambda step: cosine(2 * step)) for name in "ab"]
    result = compare_schedules(*runs)
    assert (result.status, ids(result)) == (RungStatus.ALIGNED, [])


@pytest.mark.parametrize("what", ["no configuration", "no total", "another engine"])
def test_a_schedule_that_is_not_known_blames_nobody(tmp_path: Path, what: str) -> None:
    unknown = run(
        tmp_path / "b",
        lambda step: cosine(2 * step),
        configured=what != "no configuration",
        total=None if what == "no total" else STEPS,
        strategy="megatron" if what == "another engine" else "fsdp",
    )
    result = compare_schedules(run(tmp_path / "a", cosine), unknown)
    assert (result.status, ids(result)) == (RungStatus.MISSING, [])
    assert result.missing[0].side == "candidate"


def test_a_run_without_a_logged_rate_is_said_to_lack_it(tmp_path: Path) -> None:
    result = compare_schedules(run(tmp_path / "a", None), run(tmp_path / "b", cosine))
    assert (result.status, result.missing[0].side) == (RungStatus.MISSING, "reference")


def test_a_real_run_with_warmup_follows_the_schedule_it_printed(corpus: Path) -> None:
    log = corpus / "verl_logs" / "dapo_gpu_v05_201steps_invalid_utf8.out"
    runs = [RunData(discover([log])) for _ in range(2)]
    assert "the declared schedule at every step" in compare_schedules(*runs).summary.en
