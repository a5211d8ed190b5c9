"""Checks of one run's configuration: settings that break it or contradict each other.

Each check is a module of the folder ``checks``, which is the registry.
"""

from __future__ import annotations

from align.config.lint.checks import checks
from align.config.lint.one_run import OneRun, one_run
from align.core.finding import Finding

__all__ = ["OneRun", "findings", "one_run"]


def findings(run: OneRun) -> list[Finding]:
    """Return what every check finds, the most severe first, then in causal order."""
    found = [finding for check in checks() for finding in check.check(run)]
    return sorted(found, key=lambda f: (f.severity.rank, f.rung.position, f.id))
