"""``diff``: two runs compared on one rung alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from align.cli.layers_msprobe import are_msprobe, diff_dumps
from align.cli.layers_steps import diff_steps, no_options, step_options
from align.cli.options import fail_on_option, json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.rung_show import show_and_exit
from align.cli.sides import find_run, load, sides, size_bytes

Command = TypeVar("Command", bound=Callable[..., Any])


def run_options(helps: Mapping[str, str]) -> Callable[[Command], Command]:
    """Add options that take a run each and may be repeated, with their help."""

    def decorate(function: Command) -> Command:
        for name, text in reversed(list(helps.items())):
            path = click.Path(path_type=Path)
            option = click.option(f"--{name}", type=path, multiple=True, metavar="RUN", help=text)
            function = option(function)
        return function

    return decorate


def diff_command(
    rung_module: str,
    help: str,
    *,
    function: str = "compare",
    with_tables: bool = False,
    further_runs: Mapping[str, str] | None = None,
    takes_msprobe: bool = False,
    takes_steps: bool = False,
) -> click.Command:
    """Return the ``diff`` command of the rung that ``function`` of a module compares.

    Args:
        with_tables: print the rung's tables without ``--all`` too.
        further_runs: options that take more runs, with their help; the function takes each as a
            sequence of that name.
        takes_msprobe: compare folders of msprobe dumps too, where both sides are such.
        takes_steps: offer to compare every step.
    """
    names = further_runs or {}

    @click.command("diff", help=help)
    @sides()
    @run_options(names)
    @(step_options if takes_steps else no_options)
    @click.option("--all", "show_all", is_flag=True, help="List what is equal too.")
    @lang_option
    @fail_on_option
    @json_option
    @click.pass_context
    def diff(
        ctx: click.Context,
        /,
        reference: Path,
        candidate: Path,
        reference_files: tuple[Path, ...],
        candidate_files: tuple[Path, ...],
        show_all: bool,
        lang: str,
        fail_on: str,
        as_json: bool,
        all_steps: bool = False,
        ray: str | None = None,
        **further: tuple[Path, ...],
    ) -> None:
        if takes_msprobe and not any(further.values()) and are_msprobe(reference, candidate):
            both = (reference, candidate)
            diff_dumps(ctx, both, show_all=show_all, lang=lang, fail_on=fail_on, as_json=as_json)
            return
        from align.cli.rung_view import as_text

        runs = find_run(reference, reference_files), find_run(candidate, candidate_files)
        more = {name: [find_run(path, ()) for path in paths] for name, paths in further.items()}
        everything = (*runs, *(run for each in more.values() for run in each))
        with progress_bar(sum(map(size_bytes, everything))) as bar:
            ours, theirs = (load(run, bar.advance) for run in runs)
            loaded = {name: [load(run, bar.advance) for run in each] for name, each in more.items()}
            if all_steps or ray:
                result = diff_steps(ours, theirs, ray, takes_noise=not any(further.values()))
            else:
                result = getattr(import_module(rung_module), function)(ours, theirs, **loaded)
        show_and_exit(
            ctx,
            result,
            (ours, theirs),
            lambda: as_text(result, lang, show_all=show_all or with_tables),
            fail_on=fail_on,
            as_json=as_json,
        )

    return diff
