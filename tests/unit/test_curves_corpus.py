"""Real pairs of runs: what is true of each was computed once from the raw logs, independently."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from align.cli.curves import command
from align.core.finding import Severity
from align.core.rung import RungResult, RungStatus
from align.curves.rung import compare
from align.ladder import compare_curves, judge
from dumps.store.discover import discover
from dumps.store.run_data import RunData

CLEAN = [
    ("metrics/csv_grpo_dp2.csv", "metrics/csv_grpo_ulysses_sp2dp2.csv"),
    ("metrics/filelogger_sft_fsdp1.jsonl", "metrics/filelogger_sft_fsdp2.jsonl"),
    ("metrics/tb_gsm8k_sync", "metrics/tb_gsm8k_async"),
    ("verl_logs/grpo_gpu_v08_110steps_tqdm.txt", "metrics/tb_grpo_gpu_v08"),
]
RECORDED = [
    "verl_logs/ppo_gpu_v01_61steps_3decimals.log",
    "verl_logs/ppo_gpu_v03_resumed_at_101.log",
    "verl_logs/dapo_gpu_v05_201steps_invalid_utf8.out",
    "verl_logs/grpo_npu_fullyasync_3lines_a_step.txt",
    "verl_logs/grpo_npu_v09_npfloat_excerpt.log",
    "metrics/filelogger_grpo_fsdp.jsonl",
    "metrics/tb_gsm8k_async",
    "mindspeed_rl/log_grpo_qwen25_7b_3iterations.txt",
]
REPEATS = ("verl_logs/grpo_npu_sync_repeat_a.txt", "verl_logs/grpo_npu_sync_repeat_b.txt")


def compare_paths(reference: Path, candidate: Path) -> RungResult:
    return compare(RunData(discover([reference])), RunData(discover([candidate])))


def errors(result: RungResult) -> set[str]:
    return {f.id for f in result.findings if f.severity is Severity.ERROR}


@pytest.mark.parametrize("name", RECORDED)
def test_a_real_run_is_aligned_with_itself(corpus: Path, name: str) -> None:
    result = compare_paths(corpus / name, corpus / name)
    assert result.status is RungStatus.ALIGNED
    assert {f.severity for f in result.findings} <= {Severity.INFO}


@pytest.mark.parametrize(("reference", "candidate"), CLEAN)
def test_a_real_clean_pair_has_no_error(corpus: Path, reference: str, candidate: str) -> None:
    assert errors(compare_paths(corpus / reference, corpus / candidate)) == set()


def test_log_and_tensorboard_of_one_run_are_aligned(corpus: Path) -> None:
    result = compare_paths(*(corpus / name for name in CLEAN[3]))
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())


def test_near_repeats_differ_by_their_kl_loss_and_are_not_failed(corpus: Path) -> None:
    result = compare_paths(*(corpus / name for name in REPEATS))
    assert errors(result) == set()
    assert result.status is RungStatus.UNDECIDED
    kl = next(f for f in result.findings if f.id == "curves.actor.kl_loss.ratio")
    assert kl.severity is Severity.WARNING
    assert kl.symptom is not None and not kl.symptom.noise_sized
    # The plot parts "from about step 10 on"; the ratio of means over the last half is 2.24.
    assert 5 <= kl.symptom.step <= 15
    assert float(kl.candidate) / float(kl.reference) == pytest.approx(2.24, abs=0.01)  # type: ignore[arg-type]
    assert all(evidence.line for evidence in kl.evidence)


def test_near_repeats_are_inside_4_percent_with_a_final_gap_near_4_8(corpus: Path) -> None:
    result = compare_paths(*(corpus / name for name in REPEATS))
    rows = next(t for t in result.tables if t.id == "curves.acceptance").rows
    absolute, convergence = (dict(zip(COLUMNS, row, strict=True)) for row in rows)
    assert str(absolute["outcome"]) == "pass"
    assert absolute["error"] == pytest.approx(0.0225, abs=0.001)  # of a reward scale of 1
    assert str(convergence["outcome"]) == "undecided"
    # last 20 steps: 0.56636 / 0.54058 - 1
    assert convergence["error"] == pytest.approx(0.0477, abs=0.0005)
    low, high = convergence["low"], convergence["high"]
    assert isinstance(low, float) and isinstance(high, float)
    assert low < 0.05 < high


COLUMNS = (
    *("criterion", "reference", "candidate", "error", "low", "high", "limit", "scale"),
    *("outcome", "formula"),
)


def cells(result: RungResult, table: str, row: str) -> dict[str, object]:
    found = next(t for t in result.tables if t.id == table)
    values = next(r for r in found.rows if str(r[0]) == row)
    return {column.key: value for column, value in zip(found.columns, values, strict=True)}


def test_near_repeats_have_a_class_an_order_and_no_invented_cause(corpus: Path) -> None:
    runs = [RunData(discover([corpus / name])) for name in REPEATS]
    result = compare_curves(*runs)
    kl = cells(result, "curves.metrics", "actor/kl_loss")
    assert str(kl["class"]) == "constant ratio"
    assert isinstance(kl["onset"], int) and 5 <= kl["onset"] <= 15
    assert str(cells(result, "curves.order", "critic/score/mean")["order"]) == "later"
    verdict = judge([result])
    assert verdict.cause is None and verdict.next_step is not None
    assert "Repeat the reference" in verdict.next_step.en


def test_sync_and_async_part_at_the_first_step_and_for_good(corpus: Path) -> None:
    # From the event files: at step 1 reward, length and entropy are equal, pg_loss is not
    # (-0.0319 against 0.0001); reward and length part at step 2.
    result = compare_paths(corpus / "metrics/tb_gsm8k_sync", corpus / "metrics/tb_gsm8k_async")
    first = next(f for f in result.findings if f.id == "curves.first_difference")
    assert first.title.en.startswith("At step 1 ")
    assert "actor/pg_loss" in first.title.en and first.title.en.endswith("at step 2")
    kl = cells(result, "curves.metrics", "actor/kl_loss")
    assert str(kl["class"]) == "step or drift"  # the values do not tell which
    assert isinstance(kl["onset"], int) and 20 <= kl["onset"] <= 60


def test_the_log_of_four_lines_a_step_is_complete(corpus: Path) -> None:
    # 30 steps on 90 lines of 1 to 100 keys, 111 distinct, counted from the raw text.
    run = RunData(discover([corpus / "verl_logs/grpo_npu_fullyasync_3lines_a_step.txt"]))
    assert run.metrics.step_range == (1, 30)
    assert len(run.metrics.series) == 111
    assert (run.metrics.num_metric_lines, run.metrics.max_keys_per_line) == (90, 100)


def test_a_wandb_run_is_compared_as_its_console_log_is(corpus: Path) -> None:
    # The only real wandb run at hand ended before its first metric: that is said, not guessed.
    result = compare_paths(corpus / "metrics/wandb_rl", corpus / REPEATS[0])
    assert result.status is RungStatus.MISSING and result.missing[0].side == "reference"


@pytest.mark.parametrize("axis", ["samples", "tokens", "hours"])
def test_near_repeats_compare_along_every_axis(corpus: Path, axis: str) -> None:
    paths = [str(corpus / name) for name in REPEATS]
    text = CliRunner().invoke(command, ["diff", *paths, "--x", axis]).stdout
    assert f"Aligned by {axis}" in text and "actor/kl_loss" in text


def test_the_learning_rate_of_the_sft_pair_is_one_step_apart(corpus: Path) -> None:
    # fsdp1 logs 1e-7 at step 1, fsdp2 logs 5e-8; equal from step 39 on.
    result = compare_paths(*(corpus / name for name in CLEAN[1]))
    found = next(f for f in result.findings if f.id == "curves.train.lr.differs")
    assert found.severity is Severity.WARNING
    assert (found.reference, found.candidate) == pytest.approx((1e-7, 5e-8))
    assert "38 of 76 steps" in found.title.en


def test_rollouts_in_bfloat16_show_at_the_first_step(reference_runs: Path) -> None:
    runs = (reference_runs / "v091_v1_vllmcpu", reference_runs / "v091_v1_vllmcpu_bf16rollout")
    result = compare_paths(*runs)
    found = next(f for f in result.findings if f.symptom)
    assert found.id == "curves.training.rollout_probs_diff_mean.magnitude"
    assert found.symptom is not None
    assert (found.symptom.step, found.symptom.rung.value) == (1, "forward")
    assert (found.reference, found.candidate) == pytest.approx((4.14e-10, 1.685e-6), rel=0.01)
    assert errors(result) == set()


def test_two_trainers_of_one_recipe_show_no_error(reference_runs: Path) -> None:
    result = compare_paths(reference_runs / "v091_v0_fsdp2", reference_runs / "v091_v1_fsdp2")
    assert errors(result) == set()


def test_a_log_without_a_step_is_missing(corpus: Path) -> None:
    runs = (corpus / "verl_logs/no_step_crash_a.log", corpus / REPEATS[0])
    result = compare_paths(*runs)
    assert result.status is RungStatus.MISSING
    assert result.missing[0].side == "reference"


def test_the_command_prints_one_document_or_text(corpus: Path) -> None:
    paths = [str(corpus / name) for name in REPEATS]
    run = CliRunner().invoke(command, ["diff", *paths, "--json"])
    assert run.exit_code == 0
    document = json.loads(run.stdout)
    assert [rung["name"] for rung in document["rungs"]] == ["curves"]
    text = CliRunner().invoke(command, ["diff", *paths, "--lang", "zh", "--all"]).stdout
    assert "actor/kl_loss" in text and "验收" in text
    strict = CliRunner().invoke(command, ["diff", *paths, "--fail-on", "warning"])
    assert strict.exit_code == 1
    crashed = str(corpus / "verl_logs/no_step_crash_a.log")
    assert CliRunner().invoke(command, ["diff", crashed, paths[0]]).exit_code == 3


def test_every_run_has_finite_means_in_its_table(corpus: Path) -> None:
    result = compare_paths(*(corpus / name for name in REPEATS))
    table = next(t for t in result.tables if t.id == "curves.metrics")
    means = [row[4] for row in table.rows if isinstance(row[4], float)]
    assert len(table.rows) == 76 and np.isfinite(means).all()
