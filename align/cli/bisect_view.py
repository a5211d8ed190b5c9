"""How a bisection shows what it does, while it does it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import click

from align.bisect.drive import Notice
from align.bisect.knob import Knob
from align.bisect.result import at_candidate

_SHOWN = 12  # rows of the table on the terminal
Show = Callable[[Notice], None]


@contextmanager
def progress_table(knobs: tuple[Knob, ...]) -> Iterator[Show]:
    """Give a function that shows every trial: a live table on a terminal, else a line each."""
    if not sys.stderr.isatty():
        yield lambda notice: _line(knobs, notice)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    rows: dict[tuple[tuple[int, ...], int], tuple[str, str, str]] = {}
    lock = Lock()

    def table() -> Table:
        made = Table("no.", "at the candidate's value", "repeat", "verdict", "read from")
        for number, (key, (names, outcome, said)) in list(enumerate(rows.items()))[-_SHOWN:]:
            made.add_row(str(number + 1), names, str(key[1]), outcome, said)
        return made

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def show(notice: Notice) -> None:
            with lock:
                rows[notice.setting, notice.repeat] = _cells(knobs, notice)
                live.update(table())

        yield show


def _cells(knobs: tuple[Knob, ...], notice: Notice) -> tuple[str, str, str]:
    names = at_candidate(knobs, notice.setting)
    listed = ", ".join(names[:3]) + (f", … ({len(names)})" if len(names) > 3 else "")
    trial = notice.trial
    if trial is None:
        return listed or "none", "running", ""
    return listed or "none", trial.reading.outcome.value, trial.said


def _line(knobs: tuple[Knob, ...], notice: Notice) -> None:
    if notice.trial is None:
        return
    names, outcome, said = _cells(knobs, notice)
    text = f"{notice.trial.name}: {outcome} ({said}); at the candidate's value: {names}"
    click.echo(text, err=True)
