"""What to try, and what counts as the candidate's fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from align.bisect.knob import Knob
from align.bisect.vote import Repeats
from align.core.rung import Rung


@dataclass(frozen=True, slots=True)
class ExitCodeTest:
    """0 is good, 125 does not tell (as in `git bisect run`), any other code is bad."""


@dataclass(frozen=True, slots=True)
class MetricTest:
    """The mean of a metric over a trial's last steps against a threshold.

    With a ``reference`` the value is |mean - mean of the reference| / |mean of the reference| over
    the last common steps.

    Args:
        steps: how many of the last steps; None for all.
        bad_above: bad when the value is above the threshold, else when it is below.
    """

    metric: str
    threshold: float
    bad_above: bool
    steps: int | None = None
    reference: Path | None = None


@dataclass(frozen=True, slots=True)
class FindingTest:
    """Bad when the comparison with the reference run has a finding, a warning at least, that fits.

    Args:
        pattern: of finding ids, as in fnmatch; begins with the name of a rung.
    """

    reference: Path
    pattern: str

    @property
    def rung(self) -> Rung:
        """The rung that makes such findings."""
        return Rung(self.pattern.partition(".")[0])


@dataclass(frozen=True, slots=True)
class RungTest:
    """Bad when one rung of the comparison with the reference run has diverged."""

    reference: Path
    rung: Rung


Test = ExitCodeTest | MetricTest | FindingTest | RungTest


def describe(test: Test) -> str:
    """Say in words what makes a trial bad."""
    if isinstance(test, ExitCodeTest):
        return "bad: an exit code other than 0 (125 does not tell)"
    if isinstance(test, FindingTest):
        return f"bad: a finding {test.pattern} against {test.reference}"
    if isinstance(test, RungTest):
        return f"bad: rung {test.rung.value} diverges from {test.reference}"
    side = "above" if test.bad_above else "below"
    steps = f"last {test.steps}" if test.steps else "all"
    against = f", relative to {test.reference}," if test.reference else ""
    return f"bad: the mean of {test.metric} over {steps} steps{against} {side} {test.threshold:g}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A difference that is no knob, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A bisection as its file states it, runs and commits looked up.

    Args:
        command: shell text with the placeholders {overrides}, {out}, {tree} and {NAME} of a version
            or commit.
        override: how one configuration key is written, with {key} and {value}.
        tree: the working tree of a commit knob.
    """

    where: str
    command: str
    knobs: tuple[Knob, ...]
    test: Test
    repeats: Repeats = field(default_factory=Repeats)
    override: str = "{key}={value}"
    tree: Path | None = None
    left_out: tuple[LeftOut, ...] = ()
