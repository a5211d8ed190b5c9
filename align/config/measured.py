"""What a measurement leaves of a difference: rules of other names that gave the same scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text

_RULES = "config.reward.rules"
_WHY = Text(
    "Measured: every response that both runs gave word by word has the same score.",
    "已测量：两次运行逐字相同的回复得分全部一致。",
)


def measured(results: Sequence[RungResult]) -> list[RungResult]:
    """Return the rungs with rules that only look different noted as such.

    Args:
        results: of all rungs.
    """
    same = any(r.name is Rung.REWARD and r.status is RungStatus.ALIGNED for r in results)
    if not same:
        return list(results)
    return [
        replace(r, findings=tuple(map(_noted, r.findings))) if r.name is Rung.CONFIG else r
        for r in results
    ]


def _noted(finding: Finding) -> Finding:
    if finding.id != _RULES or finding.severity is not Severity.WARNING:
        return finding
    mechanism = finding.mechanism
    return replace(
        finding,
        severity=Severity.INFO,
        why=Text(f"{finding.why.en} {_WHY.en}", f"{finding.why.zh}{_WHY.zh}"),
        mechanism=mechanism and replace(mechanism, strength=Strength.NONE, signature=()),
    )
