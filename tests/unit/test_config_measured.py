"""Rules of other names that gave the same scores are a note, not a cause."""

from __future__ import annotations

import pytest

from align.config.measured import measured
from align.core.finding import Finding, Mechanism, Severity, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text


def results(status: RungStatus, name: str, severity: Severity) -> list[RungResult]:
    stated = Finding(
        id=name,
        rung=Rung.CONFIG,
        severity=severity,
        title=Text("rules differ", "规则不同"),
        reference="a",
        candidate="b",
        evidence=(),
        why=Text("Scores may differ.", "得分可能不同。"),
        fix=Text("Compare them.", "请对照。"),
        mechanism=Mechanism(Rung.REWARD, Strength.SEMANTIC),
    )
    summary = Text("", "")
    return [
        RungResult(Rung.CONFIG, RungStatus.UNDECIDED, summary, (stated,)),
        RungResult(Rung.REWARD, status, summary),
    ]


def test_rules_that_gave_the_same_scores_are_noted_with_what_was_measured() -> None:
    given = results(RungStatus.ALIGNED, "config.reward.rules", Severity.WARNING)
    (finding,) = measured(given)[0].findings
    assert (finding.severity, finding.mechanism and finding.mechanism.strength) == (
        Severity.INFO,
        Strength.NONE,
    )
    assert "has the same score" in finding.why.en and "一致" in finding.why.zh


@pytest.mark.parametrize(
    ("status", "name", "severity"),
    [
        (RungStatus.MISSING, "config.reward.rules", Severity.WARNING),
        (RungStatus.DIVERGED, "config.reward.rules", Severity.WARNING),
        (RungStatus.ALIGNED, "config.reward.rules", Severity.ERROR),
        (RungStatus.ALIGNED, "config.reward.weights", Severity.WARNING),
    ],
)
def test_other_differences_and_scores_not_measured_stay_as_they_are(
    status: RungStatus, name: str, severity: Severity
) -> None:
    given = results(status, name, severity)
    assert measured(given) == given
