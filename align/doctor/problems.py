"""What is wrong with one run besides its settings: misspelled keys, errors, curves."""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint import OneRun
from align.config.unknown_keys import misspelled_findings, misspellings, unknown_finding
from align.core.config_value import EffectiveConfig
from align.core.finding import Finding, Side
from align.doctor.curves import curve_findings
from align.doctor.known_errors import error_findings
from dumps.store.run_data import RunData

_NO_CONFIG = EffectiveConfig(None, None, {})


def problem_findings(data: RunData, run: OneRun) -> Iterator[Finding]:
    """Yield unknown keys, errors and curves; the settings themselves are checked by the caller."""
    from align.curves.schedule_rung import check

    yield from _key_findings(run)
    yield from error_findings(log.last_error for log in data.metric_logs if log.last_error)
    yield from curve_findings(data.metrics)
    departure = check(data, lambda _: run.config, Side.BOTH)
    if departure is not None:
        yield departure


def _key_findings(run: OneRun) -> Iterator[Finding]:
    sides = (run.config, _NO_CONFIG)
    yield from misspelled_findings(sides, misspellings(Side.BOTH, run.config, run.stated))
    unknown = unknown_finding(sides)
    if unknown is not None:
        yield unknown
