"""A progress bar on a terminal, nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """Where long work says how far it is."""

    advance: Callable[[int], None]  # bytes read
    stage: Callable[[str], None]  # what is being done


@contextmanager
def progress_bar(total_bytes: int) -> Iterator[Bar]:
    """Show a bar on stderr while the block runs; it disappears at the end.

    Rich is imported only when there is a terminal to draw on.
    """
    if not sys.stderr.isatty():
        yield Bar(advance=lambda num_bytes: None, stage=lambda name: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=total_bytes)
        yield Bar(
            advance=lambda num_bytes: progress.advance(task, num_bytes),
            stage=lambda name: progress.update(task, description=name),
        )


@dataclass(frozen=True, slots=True)
class Count:
    """Where work in pieces says how far it is."""

    total: Callable[[int], None]  # pieces there are
    done: Callable[[str], None]  # the piece just finished


@contextmanager
def count_bar() -> Iterator[Count]:
    """Show a bar of pieces done on stderr while the block runs; it disappears at the end."""
    if not sys.stderr.isatty():
        yield Count(total=lambda total: None, done=lambda name: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield Count(
            total=lambda total: progress.update(task, total=total),
            done=lambda name: progress.update(task, advance=1, description=f"{name} done"),
        )
