"""Differences of a run that was given its rows: what had no say, and what trains all the same."""

from __future__ import annotations

from typing import Any

import pytest

from align.config.replayed import moot, rows_were_given
from align.core.finding import Finding, Mechanism, Severity, Strength
from align.core.run import RunManifest
from align.core.rung import Rung
from align.core.text import Text

PROOF: dict[str, Any] = {
    **{"rows": 64, "identical": 64, "mismatches": 0, "generated": 0, "left_over": 0},
    "out_of_order": 0,
}


def finding(field: str, acts_on: Rung, severity: Severity) -> Finding:
    said = Text("It matters.", "有影响。")
    return Finding(
        id=f"config.{field}",
        rung=Rung.CONFIG,
        severity=severity,
        title=said,
        reference=1,
        candidate=2,
        evidence=(),
        why=said,
        fix=said,
        mechanism=Mechanism(acts_on, Strength.SEMANTIC, ("training/*",)),
    )


@pytest.mark.parametrize(
    "other",
    [{}, {"rows": 0, "identical": 0}, {"identical": 63}, {"generated": 1}, {"out_of_order": 1}],
)
def test_only_a_proof_of_every_row_counts(other: dict[str, Any]) -> None:
    manifest = RunManifest(replay={**PROOF, **other} if other else {})
    assert not rows_were_given(manifest)
    assert rows_were_given(RunManifest(replay=PROOF))


@pytest.mark.parametrize(
    ("field", "acts_on", "severity"),
    [
        ("data.shuffle", Rung.DATA, Severity.INFO),
        ("trainer.mode.sampler.custom_sampler.name", Rung.DATA, Severity.INFO),
        ("rollout.prompt_form", Rung.ROLLOUT, Severity.WARNING),
    ],
)
def test_what_draws_rows_or_responses_is_blamed_for_nothing(
    field: str, acts_on: Rung, severity: Severity
) -> None:
    given = moot(finding(field, acts_on, Severity.ERROR))
    assert given.severity is severity
    assert given.mechanism == Mechanism(acts_on, Strength.NONE)
    assert given.why.en == (
        "It matters. It had no say here: this run was given the recorded rows and responses, all "
        "of them the same (align-run.json). It acts when the run draws its own."
    )


@pytest.mark.parametrize(
    ("field", "acts_on"),
    [
        ("rollout.temperature", Rung.ROLLOUT),
        ("model.rms_norm_eps", Rung.ROLLOUT),
        ("loss.kl_coef", Rung.LOSS),
    ],
)
def test_what_trains_too_stays_as_it_was(field: str, acts_on: Rung) -> None:
    told = finding(field, acts_on, Severity.ERROR)
    assert moot(told) == told
