"""Everything one comparison found."""

from __future__ import annotations

from dataclasses import dataclass

from align.core.rung import RungResult
from align.core.text import Text
from align.core.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How one side is named at the top of the report. None means the files do not say."""

    label: str
    framework: str | None
    framework_version: str | None
    device: str | None
    first_step: int | None
    last_step: int | None
    num_files: int
    unknown_files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # files that could not be read, each with its fix


@dataclass(frozen=True, slots=True)
class NextRun:
    """The cheapest experiment that tells more, with the commands that run it, in order."""

    title: Text
    why: Text
    commands: tuple[str, ...]
    note: Text | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The whole comparison; ``report.json`` is exactly this."""

    reference: RunSummary
    candidate: RunSummary
    verdict: Verdict
    rungs: tuple[RungResult, ...]
    next_run: NextRun | None = None
