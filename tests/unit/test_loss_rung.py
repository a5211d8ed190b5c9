"""Reported losses are laid beside those that each update's own tensors give as declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the referee computes with torch")

import torch
from safetensors.numpy import load_file, save_file

from align.core.finding import Severity, Side
from align.core.rung import Rung, RungResult, RungStatus
from align.ladder import climb
from align.referee.loss_rung import compare
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tests.unit.updated_runs import Loss, Tokens, tokens, updated_run

WRONG: Mapping[str, tuple[str, Loss]] = {
    "the KL is subtracted": ("loss.kl_sign", Loss(kl_coef=-0.05)),
    "the KL is left out": ("loss.kl_missing", Loss(kl_coef=0.0)),
    "k1 instead of k3": ("loss.kl_estimator", Loss(kl=lambda d: d)),
    "k2 instead of k3": ("loss.kl_estimator", Loss(kl=lambda d: d * d / 2)),
    "k3 of the reversed ratio": (
        "loss.kl_estimator",
        Loss(kl=lambda d: Loss().kl(-d)),
    ),
    "micro-batches averaged on their own": ("loss.aggregation", Loss(by_micro_batch=True)),
    "sequences averaged": ("loss.aggregation", Loss(by_sequence=True)),
    "clip-higher ignored": ("loss.clip_range", Loss(high=0.2)),
    "bounds exchanged": ("loss.clip_range", Loss(low=0.28, high=0.2)),
    "nothing clipped": ("loss.clip_range", Loss(low=1.0, high=1e9)),
    "nothing clipped from below": ("loss.clip_range", Loss(low=1.0)),
    "nothing clipped from above": ("loss.clip_range", Loss(high=1e9)),
    "no dual clip": ("loss.dual_clip", Loss(dual=1e9)),
    "the entropy is added": ("loss.entropy_sign", Loss(entropy_coef=-0.01)),
    "the entropy is left out": ("loss.entropy_missing", Loss(entropy_coef=0.0)),
    "the policy loss is turned": ("loss.policy_sign", Loss(sign=-1.0)),
    "the mask is a token late": ("loss.mask_shifted", Loss(shift=1)),
    "the KL itself is negative": ("loss.kl_sign", Loss(kl=lambda d: -Loss().kl(d))),
    "another range": ("loss.clip_range", Loss(low=0.11, high=0.11)),
    "another lower bound": ("loss.clip_range", Loss(low=0.05)),
    "another upper bound": ("loss.clip_range", Loss(high=0.41)),
    "every ratio is 1": ("loss.old_log_probs", Loss(own_ratio=True)),
}


def ids(result: RungResult) -> list[str]:
    return [finding.id for finding in result.findings]


@pytest.fixture
def right(tmp_path: Path) -> RunData:
    return updated_run(tmp_path / "right")


def test_two_runs_that_compute_what_they_declare_are_aligned(
    tmp_path: Path, right: RunData
) -> None:
    other = updated_run(tmp_path / "b", given=tokens(1))
    result = compare(right, other)
    assert (result.status, ids(result)) == (RungStatus.ALIGNED, [])
    assert "2 and 2 reports" in result.summary.en


@pytest.mark.parametrize(("finding", "loss"), WRONG.values(), ids=list(WRONG))
def test_another_loss_is_named_by_the_one_formula_that_gives_it(
    tmp_path: Path, right: RunData, finding: str, loss: Loss
) -> None:
    wrong = updated_run(tmp_path / "b", loss)
    result = compare(right, wrong)
    assert (result.status, ids(result)) == (RungStatus.DIVERGED, [finding])
    (only,) = result.findings
    assert only.severity is Severity.ERROR
    assert {evidence.side for evidence in only.evidence} == {Side.CANDIDATE}
    assert ids(compare(wrong, right)) == [finding]


@pytest.mark.parametrize("loss", [Loss(by_sequence=True), Loss(by_sequence=True, sign=1.0)])
def test_the_same_loss_declared_is_no_finding(tmp_path: Path, right: RunData, loss: Loss) -> None:
    other = updated_run(tmp_path / "b", loss, aggregation="seq-mean-token-mean")
    assert compare(right, other).status is RungStatus.ALIGNED


def test_one_micro_batch_an_update_hides_how_they_are_averaged(tmp_path: Path) -> None:
    """The two averages are then one number, so neither is wrong."""
    equal = tokens()
    equal.mask[:] = 1
    runs = [
        updated_run(tmp_path / name, Loss(by_micro_batch=by), given=equal)
        for name, by in (("a", False), ("b", True))
    ]
    assert compare(*runs).status is RungStatus.ALIGNED


def test_a_loss_no_formula_gives_is_unknown_and_names_the_next_experiment(
    tmp_path: Path, right: RunData
) -> None:
    wrong = updated_run(tmp_path / "b", changed={"actor/pg_loss": 1.07})
    result = compare(right, wrong)
    (only,) = result.findings
    assert (only.id, only.severity) == ("loss.recomputed_differs", Severity.WARNING)
    assert result.status is RungStatus.UNDECIDED
    assert "one micro-batch an update" in only.fix.en


def test_a_clip_range_that_no_one_would_write_is_no_explanation(
    tmp_path: Path, right: RunData
) -> None:
    (only,) = compare(right, updated_run(tmp_path / "b", Loss(high=0.4137))).findings
    assert only.id == "loss.recomputed_differs"


def test_formulas_that_cannot_be_told_apart_are_not_blamed(tmp_path: Path) -> None:
    """Of responses of one token a sequence ratio is a token ratio, and has no dual clip either."""
    short = tokens()
    short.mask[:, 1:] = 0
    right = updated_run(tmp_path / "a", given=short)
    wrong = updated_run(tmp_path / "b", Loss(dual=1e9), given=short)
    (only,) = compare(right, wrong).findings
    assert only.id == "loss.recomputed_differs"
    assert "Several formulas" in only.why.en
    assert "loss.dual_clip, loss.mode" in only.why.en


def test_both_runs_wrong_alike_are_not_blamed(tmp_path: Path) -> None:
    runs = [updated_run(tmp_path / name, Loss(kl_coef=-0.05)) for name in "ab"]
    result = compare(*runs)
    assert (result.status, ids(result)) == (RungStatus.UNDECIDED, [])


def test_float32_rounding_of_the_report_is_no_difference(tmp_path: Path, right: RunData) -> None:
    near = {f"actor/{name}": 1 + 2.0**-23 for name in ("loss", "pg_loss", "kl_loss")}
    assert compare(right, updated_run(tmp_path / "b", changed=near)).status is RungStatus.ALIGNED


def test_a_run_without_updates_off_policy_is_said_to_lack_them(
    tmp_path: Path, right: RunData
) -> None:
    result = compare(right, updated_run(tmp_path / "b", with_updates=False))
    assert (result.status, result.missing[0].side) == (RungStatus.MISSING, "candidate")
    assert "updates/STEP.safetensors" in result.missing[0].how_to_record.en


def test_with_one_update_a_step_the_batch_and_the_log_are_enough(tmp_path: Path) -> None:
    once = tokens(on_policy=True)
    runs = [
        updated_run(tmp_path / name, loss, entropy=0.0, mini=2, given=once, with_updates=False)
        for name, loss in (
            ("a", Loss(entropy_coef=0.0)),
            ("b", Loss(entropy_coef=0.0, kl_coef=-0.05)),
        )
    ]
    assert compare(runs[0], runs[0]).status is RungStatus.ALIGNED
    result = compare(*runs)
    assert ids(result) == ["loss.kl_sign"]
    assert "not recorded" in result.findings[0].why.en


def test_on_policy_a_loss_of_other_log_probs_is_missing_and_not_wrong(tmp_path: Path) -> None:
    runs = [
        updated_run(
            tmp_path / name,
            Loss(entropy_coef=0.0),
            entropy=0.0,
            mini=2,
            given=tokens(on_policy=exact),
            with_updates=False,
        )
        for name, exact in (("a", True), ("b", False))
    ]
    assert compare(*runs).status is RungStatus.MISSING


def test_the_verdict_names_the_loss_first(tmp_path: Path, right: RunData) -> None:
    verdict = climb(right, updated_run(tmp_path / "b", Loss(kl_coef=-0.05))).verdict
    assert (verdict.rung, verdict.finding_id) == (Rung.LOSS, "loss.kl_sign")
    assert verdict.cause is not None


def narrow_tokens(seed: int = 0) -> Tokens:
    """Draw log_probs that bfloat16 holds."""
    given = tokens(seed)
    names = ("new", "old", "ref")
    bits = {n: getattr(given, n).view(np.uint32) & np.uint32(0xFFFF0000) for n in names}
    return replace(given, **{name: own.view(np.float32) for name, own in bits.items()})


def bfloat16_run(folder: Path, *, seed: int = 0, sign: float = 1.0, high: float = 0.28) -> RunData:
    """Write a run whose trainer subtracts, exponentiates and clips in bfloat16."""
    given = narrow_tokens(seed)
    updated_run(folder, given=given, entropy=0.0)
    path = folder / "updates/1.safetensors"
    file = load_file(path)
    for update in range(2):
        rows = np.flatnonzero(file["update"] == update)
        new, old, ref = (
            torch.tensor(tensor[rows]).bfloat16() for tensor in (given.new, given.old, given.ref)
        )
        mask, gains = torch.tensor(given.mask[rows]).bool(), torch.tensor(given.advantage[rows])
        ratio = (new - old).exp()
        losses = torch.maximum(-gains * ratio, -gains * ratio.clamp(0.8, 1 + high))
        losses = torch.where(gains < 0, torch.minimum(losses, -gains * 3.0), losses)
        policy = losses[mask].float().mean()
        kl = sign * ((ref - new).exp() - (ref - new) - 1)[mask].mean()
        file["actor/pg_loss"][update] = float(policy)
        file["actor/kl_loss"][update] = float(kl)
        file["actor/loss"][update] = float(policy + kl * 0.05)
    save_file(file, path)
    return RunData(discover([folder]))


@pytest.mark.parametrize(
    ("finding", "sign", "high"), [("loss.kl_sign", -1.0, 0.28), ("loss.clip_range", 1.0, 0.2)]
)
def test_a_loss_in_bfloat16_is_recomputed_in_bfloat16_where_rounding_hides_the_difference(
    tmp_path: Path, finding: str, sign: float, high: float
) -> None:
    right = bfloat16_run(tmp_path / "right")
    other = bfloat16_run(tmp_path / "other", seed=1)
    assert (compare(right, other).status, ids(compare(right, other))) == (RungStatus.ALIGNED, [])
    wrong = bfloat16_run(tmp_path / "wrong", sign=sign, high=high)
    assert ids(compare(right, wrong)) == [finding]


def test_a_loss_of_bfloat16_log_probs_in_float32_is_no_finding(tmp_path: Path) -> None:
    runs = [updated_run(tmp_path / str(i), given=narrow_tokens(i)) for i in range(2)]
    assert compare(*runs).status is RungStatus.ALIGNED
