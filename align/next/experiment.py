"""An experiment: what it costs, what it tells, and the commands that run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from align.core.text import Text

Settings = Mapping[str, str | int]
"""Fields of the common schema to set, and their values."""


COMPARE = "align report {reference} {candidate} -o report-{id}"


@dataclass(frozen=True, slots=True)
class Reading:
    """One outcome of an experiment and what it means."""

    seen: Text
    means: Text


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment in terms of the common schema, before it is spelled for a framework.

    Args:
        id: stable, such as "replay_step_1".
        reference, candidate: what to set on either side; None where that side is not run.
        num_steps: training steps of each side that runs; None where it runs to its end.
        records: the reference is run under `align capture`.
        replays: the candidate is run under `align replay` on what the reference recorded.
        raw: settings of the candidate as its own command line has them.
        compare: the command that reads the result.
    """

    id: str
    title: Text
    why: Text
    readings: tuple[Reading, ...]
    reference: Settings | None
    candidate: Settings | None
    num_steps: int | None
    records: bool = False
    replays: bool = False
    raw: tuple[str, ...] = ()
    compare: str = COMPARE


@dataclass(frozen=True, slots=True)
class Cost:
    """What an experiment takes.

    Args:
        num_steps: training steps, both sides together.
        seconds: at the recorded time of a step; None where no step time is recorded.
    """

    num_steps: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Experiment:
    """A plan with its price and its commands, in the order in which they are run."""

    plan: Plan
    cost: Cost
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do next.

    Args:
        situation: one sentence on what is known.
        record: what costs no run: files to keep beside what is recorded already.
        chosen: the cheapest experiment; None where none is needed.
        others: what also applies, cheapest first.
        harmless: differences that were found and change nothing.
        blameless: differences that can matter and cannot have caused what is seen.
        note: what the commands leave to the reader; None where they are complete.
    """

    situation: Text
    record: tuple[Text, ...]
    chosen: Experiment | None
    others: tuple[Experiment, ...]
    harmless: tuple[Text, ...]
    blameless: tuple[Text, ...]
    note: Text | None
