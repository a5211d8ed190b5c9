"""Run trials until the search has its answer or the budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from threading import Event, Lock

from align.bisect.knob import Change, Knob, Setting
from align.bisect.plan import Plan
from align.bisect.process import alone_in
from align.bisect.search import Ask, Search, new_search
from align.bisect.search import run as searching
from align.bisect.trial import Trial, is_finished, run_trial
from align.bisect.vote import Reading, Vote, needs_more, vote


class BudgetSpent(Exception):
    """No further trial may be started."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a bisection. Trials of an earlier one that is resumed count too."""

    runs: int | None = None
    hours: float | None = None  # of all trials added up


@dataclass(frozen=True, slots=True)
class Notice:
    """A trial that starts, or has ended."""

    setting: Setting
    repeat: int
    trial: Trial | None  # None at the start


@dataclass(slots=True)
class Ledger:
    """Every trial that counts, in the order they ended."""

    budget: Budget
    trials: dict[Setting, list[Trial]] = field(default_factory=dict)
    num_started: int = 0
    spent_s: float = 0.0
    longest_s: float = 0.0
    lock: Lock = field(default_factory=Lock)

    def start(self, *, finished: bool) -> None:
        """Count a trial.

        Raises:
            BudgetSpent: It would go beyond the budget.
        """
        with self.lock:
            runs, hours = self.budget.runs, self.budget.hours
            if not finished and runs is not None and self.num_started >= runs:
                raise BudgetSpent
            late = hours is not None and self.spent_s + self.longest_s > hours * 3600
            if not finished and late:
                raise BudgetSpent
            self.num_started += 1

    def end(self, trial: Trial) -> None:
        """Keep a finished trial."""
        with self.lock:
            self.trials.setdefault(trial.setting, []).append(trial)
            self.spent_s += trial.elapsed_s
            self.longest_s = max(self.longest_s, trial.elapsed_s)


@dataclass(frozen=True, slots=True)
class Driven:
    """How a bisection went.

    Args:
        suspects, kept: of the last question, where the budget ended the search.
    """

    plan: Plan
    search: Search
    trials: tuple[Trial, ...]
    votes: dict[Setting, Vote]
    suspects: tuple[Change, ...]
    kept: tuple[Change, ...]


def drive(
    plan: Plan,
    folder: Path,
    *,
    jobs: int = 1,
    budget: Budget | None = None,
    on_event: Callable[[Notice], None] = lambda event: None,
) -> Driven:
    """Find which knobs turn the verdict.

    Args:
        folder: of all trials; finished ones in it are used again.
        jobs: trials at the same time.

    Raises:
        RunError: Another bisection works in the folder, or a commit cannot be copied.
    """
    search, ledger, votes = new_search(plan.knobs, jobs), Ledger(budget or Budget()), {}
    questions = searching(search)
    stop = Event()
    ask: Ask | None = None

    def judge(setting: Setting) -> Vote:
        return _judge(plan, folder, setting, ledger, stop, on_event)

    with alone_in(folder), ThreadPoolExecutor(jobs) as pool:
        try:
            ask = next(questions)
            while True:
                found = dict(zip(ask.settings, pool.map(judge, ask.settings), strict=True))
                votes.update(found)
                ask = questions.send({s: v.outcome for s, v in found.items()})
        except StopIteration:
            ask = None
        except BudgetSpent:
            pass  # the last question says what is left open
        except BaseException:
            stop.set()  # running commands are ended, and are not counted as finished
            raise
    trials = tuple(t for setting in ledger.trials.values() for t in setting)
    suspects, kept = (ask.suspects, ask.kept) if ask else ((), ())
    return Driven(plan, search, trials, votes, suspects, kept)


def _judge(
    plan: Plan,
    folder: Path,
    setting: Setting,
    ledger: Ledger,
    stop: Event,
    on_event: Callable[[Notice], None],
) -> Vote:
    """Try a setting until its verdict is certain enough."""
    readings: list[Reading] = []
    while not readings or needs_more(readings, plan.repeats, _scale(plan.knobs, ledger)):
        repeat = len(readings) + 1
        ledger.start(finished=is_finished(plan, folder, setting, repeat))
        on_event(Notice(setting, repeat, None))
        trial = run_trial(plan, folder, setting, repeat, stop)
        ledger.end(trial)
        on_event(Notice(setting, repeat, trial))
        readings.append(trial.reading)
    return vote(readings, plan.repeats, _scale(plan.knobs, ledger))


def _scale(knobs: Sequence[Knob], ledger: Ledger) -> float | None:
    """Return how far the plan's two ends lie from the threshold, on average."""
    ends = [tuple(0 for _ in knobs), tuple(knob.last for knob in knobs)]
    means = []
    for end in ends:
        readings = [t.reading.distance for t in ledger.trials.get(end, [])]
        known = [distance for distance in readings if distance is not None]
        if not known:
            return None
        means.append(fmean(known))
    return abs(means[1] - means[0]) / 2
