"""The whole way from real files to a verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from align.core.finding import Severity
from align.core.report import Report
from align.core.rung import Rung, RungStatus
from align.core.verdict import Confidence, VerdictStatus
from align.ladder import climb
from dumps.store.discover import discover
from dumps.store.run_data import RunData

EXAMPLES = Path(__file__).parents[2] / "align" / "examples"


def report(reference: Path, candidate: Path) -> Report:
    return climb(RunData(discover([reference])), RunData(discover([candidate])))


def errors(result: Report) -> list[str]:
    return [f.id for rung in result.rungs for f in rung.findings if f.severity is Severity.ERROR]


def status(result: Report, rung: Rung) -> RungStatus:
    return next(r.status for r in result.rungs if r.name is rung)


def test_a_temperature_lost_in_migration_is_the_first_cause() -> None:
    result = report(EXAMPLES / "reference", EXAMPLES / "candidate")
    assert result.verdict.status is VerdictStatus.DIVERGED
    assert result.verdict.finding_id == "config.rollout.temperature"
    assert result.verdict.confidence is Confidence.HIGH


def test_a_repeat_with_another_sampling_seed_raises_no_alarm() -> None:
    result = report(EXAMPLES / "reference", EXAMPLES / "repeat")
    assert errors(result) == []
    assert result.verdict.status is not VerdictStatus.DIVERGED


@pytest.mark.parametrize("name", ["reference", "candidate", "repeat"])
def test_a_run_against_itself_is_aligned(name: str) -> None:
    result = report(EXAMPLES / name, EXAMPLES / name)
    assert result.verdict.status is VerdictStatus.ALIGNED
    assert errors(result) == []


def test_a_bfloat16_rollout_against_a_float32_one_is_named(reference_runs: Path) -> None:
    result = report(
        reference_runs / "v091_v1_vllmcpu", reference_runs / "v091_v1_vllmcpu_bf16rollout"
    )
    assert result.verdict.finding_id == "config.rollout.dtype"
    assert errors(result)[0] == "config.rollout.dtype"


def test_near_repeats_on_two_and_four_cards_are_not_blamed(corpus: Path) -> None:
    logs = corpus / "verl_logs"
    result = report(logs / "grpo_npu_sync_repeat_a.txt", logs / "grpo_npu_sync_repeat_b.txt")
    assert errors(result) == []
    assert result.verdict.status is VerdictStatus.UNDECIDED
    assert result.verdict.cause is None
    assert "kl_loss" in (result.verdict.finding_id or "")
    assert status(result, Rung.DATA) is RungStatus.ALIGNED


def test_harmless_keys_are_not_blamed_for_a_reward_that_differs_from_step_1(
    corpus: Path, tmp_path: Path
) -> None:
    logs = corpus / "verl_logs"
    text = (logs / "grpo_npu_sync_repeat_b.txt").read_text(encoding="utf-8", errors="replace")
    shifted = re.sub(
        r"(critic/(?:score|rewards)/mean:)([-\d.e]+)",
        lambda m: f"{m[1]}{float(m[2]) - 0.375}",
        text,
    )
    (tmp_path / "candidate.log").write_text(shifted, encoding="utf-8")
    result = report(logs / "grpo_npu_sync_repeat_a.txt", tmp_path / "candidate.log")
    verdict = result.verdict
    assert (verdict.status, verdict.rung) == (VerdictStatus.DIVERGED, Rung.CURVES)
    assert verdict.cause is None
    assert verdict.next_step is not None
    assert Rung.TOKENS in verdict.not_recorded


@pytest.mark.parametrize("name", ["no_step_crash_a.log", "no_step_crash_b.log"])
def test_a_crashed_run_is_not_comparable_on_curves_and_its_last_error_is_quoted(
    corpus: Path, name: str
) -> None:
    logs = corpus / "verl_logs"
    result = report(logs / "grpo_npu_sync_repeat_a.txt", logs / name)
    curves = next(r for r in result.rungs if r.name is Rung.CURVES)
    assert curves.status is RungStatus.MISSING
    assert ("OutOfMemoryError" in curves.summary.en) is (name == "no_step_crash_b.log")
    assert "95% full" not in curves.summary.en


def test_every_missing_rung_says_what_to_record(corpus: Path) -> None:
    log = corpus / "verl_logs" / "sft_gpu_4500steps.log"
    for rung in report(log, log).rungs:
        if rung.status is RungStatus.MISSING:
            assert rung.missing
            assert all(m.how_to_record.en and m.how_to_record.zh for m in rung.missing)
