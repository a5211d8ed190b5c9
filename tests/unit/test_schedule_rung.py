"""The logged learning rate is checked against the schedule a configuration declares."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from align.config.normalise import effective
from align.core.finding import Finding, Severity, Side
from align.core.rung import Rung, RungResult, RungStatus
from align.curves.logged_schedule import logged_rates
from align.curves.schedule_rung import check
from align.frameworks.declared_schedule import declared_schedule
from align.frameworks.schedules import transformers_lr
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


def test_two_runs_that_leave_their_schedules_alike_are_told_and_not_blamed(tmp_path: Path) -> None:
    runs = [run(tmp_path / name, lambda step: cosine(2 * step)) for name in "ab"]
    result = compare_schedules(*runs)
    assert result.status is RungStatus.ALIGNED
    assert [f.severity for f in result.findings] == [Severity.INFO] * 2
    assert [f.mechanism for f in result.findings] == [None] * 2


def test_two_runs_that_leave_their_schedules_otherwise_are_both_named(tmp_path: Path) -> None:
    runs = run(tmp_path / "a", lambda step: LR), run(tmp_path / "b", lambda step: LR / 2)
    result = compare_schedules(*runs)
    assert result.status is RungStatus.UNDECIDED
    assert [f.severity for f in result.findings] == [Severity.WARNING] * 2
    assert [f.evidence[0].side for f in result.findings] == [Side.REFERENCE, Side.CANDIDATE]


def test_declared_cosine_and_observed_constant_is_named(tmp_path: Path) -> None:
    flat = run(tmp_path / "b", lambda step: LR)
    (finding,) = compare_schedules(run(tmp_path / "a", cosine), flat).findings
    assert finding.severity is Severity.ERROR
    assert finding.title.en.startswith("declared cosine, observed constant 0.001: the candidate's")
    assert finding.title.zh.startswith("声明为 cosine，实际恒为 0.001：被测的")


def test_a_warmup_that_never_happens_is_named(tmp_path: Path) -> None:
    def warmup(step: int) -> float:
        return LR * min(1.0, step / WARMUP)

    pair = [run(tmp_path / n, r, style="constant") for n, r in (("a", warmup), ("b", lambda s: LR))]
    (finding,) = compare_schedules(*pair).findings
    assert "declared a warmup over 5 steps, observed constant 0.001" in finding.title.en


def test_a_decay_over_twice_the_steps_is_named(tmp_path: Path) -> None:
    def late(step: int) -> float:
        if step < WARMUP:
            return cosine(step)
        return LR * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (2 * STEPS - WARMUP)))

    (finding,) = compare_schedules(run(tmp_path / "a", cosine), run(tmp_path / "b", late)).findings
    assert "declared cosine over 20 steps, decays over 40" in finding.title.en


def test_a_decay_that_ends_early_is_named_with_its_steps_at_zero(tmp_path: Path) -> None:
    def cut(step: int) -> float:
        return 0.0 if step > 12 else cosine(step)

    (finding,) = compare_schedules(run(tmp_path / "a", cosine), run(tmp_path / "b", cut)).findings
    assert "the rate is 0 for the last 8 of 20 logged steps" in finding.title.en


def test_one_run_alone_is_checked_against_what_it_declares(tmp_path: Path) -> None:
    assert alone(run(tmp_path / "a", cosine)) is None
    finding = alone(run(tmp_path / "b", lambda step: LR))
    assert finding is not None and finding.severity is Severity.WARNING
    assert "declared cosine, observed constant" in finding.title.en
    assert alone(run(tmp_path / "c", None)) is None
    assert alone(run(tmp_path / "d", lambda step: LR, configured=False)) is None


@pytest.mark.parametrize("bare", ["without its configuration", "without its rates"])
def test_a_run_that_leaves_its_schedule_is_named_beside_one_that_tells_nothing(
    tmp_path: Path, bare: str
) -> None:
    other = run(
        tmp_path / "a",
        None if bare == "without its rates" else cosine,
        configured=bare == "without its rates",
    )
    result = compare_schedules(other, run(tmp_path / "b", lambda step: LR))
    assert (result.status, ids(result)) == (RungStatus.UNDECIDED, ["optimizer.lr_schedule"])
    assert result.missing[0].side == "reference"


def console(folder: Path, rates: Rates, lr: float) -> RunData:
    """Log as verl up to 0.4 does, with three decimals."""
    run(folder, None)
    text = (folder / ".hydra" / "config.yaml").read_text()
    (folder / ".hydra" / "config.yaml").write_text(text.replace(f"lr: {LR}", f"lr: {lr}"))
    (folder / "metrics.jsonl").unlink()
    rows = (f"step:{k} - actor/pg_loss:0.500 - actor/lr:{rates(k):.3f}" for k in range(1, 21))
    (folder / "console.log").write_text("".join(f"{row}\n" for row in rows))
    return RunData(discover([folder]))


@pytest.mark.parametrize("lr", [1e-6, 4e-4, 1e-3, 2e-2])
def test_rates_that_printing_rounds_are_no_departure(tmp_path: Path, lr: float) -> None:
    assert alone(console(tmp_path, lambda step: cosine(step) / LR * lr, lr)) is None


def test_a_departure_beyond_three_decimals_is_found(tmp_path: Path) -> None:
    finding = alone(console(tmp_path, lambda step: 2e-2, 2e-2))
    assert finding is not None and "observed constant 0.02" in finding.title.en


def test_a_constant_rate_that_hides_a_tiny_decay_is_no_departure(tmp_path: Path) -> None:
    assert alone(console(tmp_path, lambda step: 1e-6, 1e-6)) is None


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


def test_no_real_run_leaves_what_it_declares(corpus: Path, reference_runs: Path) -> None:
    paths = [*(corpus / "verl_logs").iterdir(), corpus / "metrics" / "wandb_rl"]
    paths += [path for path in reference_runs.iterdir() if path.name.startswith("v091")]
    runs = [RunData(discover([path])) for path in sorted(paths)]
    assert [alone(data) for data in runs] == [None] * len(runs)
    assert sum(_is_checked(data) for data in runs) >= 7


def test_the_real_run_with_three_decimals_is_checked_and_silent(corpus: Path) -> None:
    data = RunData(discover([corpus / "verl_logs" / "ppo_gpu_v03_resumed_at_101.log"]))
    logged = logged_rates(data)
    assert logged is not None and set(logged.values) == {0.0} and set(logged.resolution) == {0.001}
    assert _is_checked(data) and alone(data) is None


def test_a_real_linear_decay_is_the_law_of_transformers(corpus: Path) -> None:
    data = RunData(discover([corpus / "metrics" / "tb_gsm8k_sync"]))
    logged = logged_rates(data)
    assert logged is not None and len(logged) == 105
    expected = [transformers_lr(k, lr=1e-6, num_training_steps=105) for k in range(105)]
    assert logged.values == pytest.approx(expected, rel=2**-23, abs=1e-15)


def alone(data: RunData) -> Finding | None:
    return check(data, lambda run: effective(run.configs, run.run.manifest))


def _is_checked(data: RunData) -> bool:
    config = effective(data.configs, data.run.manifest)
    declared = declared_schedule(config.values, config.framework)
    return declared is not None and logged_rates(data) is not None
