"""Everything the doctor has to say about one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from align.core.environment import EnvironmentFact
from align.core.errors import AlignError
from align.core.finding import Finding
from align.core.report import RunSummary
from align.core.text import Text
from align.doctor.advice import Judged
from align.doctor.case import Case
from align.doctor.stack import Stack


class Part(str, Enum):
    """What can be examined by itself."""

    PROBLEMS = "problems"
    ENVIRONMENT = "environment"
    PERFORMANCE = "performance"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One run alone.

    Args:
        summary: which run it is.
        parts: what was examined.
        findings: the most severe first, then in causal order.
        assumptions: what was assumed or left out in reading the configuration.
        stack: its versions; None where the environment was not examined.
        variables: its environment variables, by name without prefix.
        case: its times and sizes; None where speed was not examined.
        advice: what would shorten the slowest stage first; what cannot be told comes last.
        problems: files that could not be read.
    """

    summary: RunSummary
    parts: tuple[Part, ...]
    findings: tuple[Finding, ...]
    assumptions: tuple[Text, ...]
    stack: Stack | None
    variables: Mapping[str, EnvironmentFact]
    case: Case | None
    advice: tuple[Judged, ...]
    problems: tuple[AlignError, ...]
