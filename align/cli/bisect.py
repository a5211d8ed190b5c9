"""``align bisect``: which setting makes the difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from align.cli.options import json_option, lang_option
from align.core.errors import ExitCode, RunError

if TYPE_CHECKING:
    from align.bisect.drive import Driven
    from align.bisect.plan import Plan

_PATH = click.Path(path_type=Path)


class PlanOrCommand(click.Group):
    """A group that takes what is none of its commands for the file of a plan."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or the one that runs a plan with the plan filled in."""
        known = super().get_command(ctx, cmd_name)
        return known or _run_command(Path(cmd_name))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an option in front of PLAN with words that help."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            raise click.UsageError(f"write {args[0]} behind PLAN", ctx)
        return super().parse_args(ctx, args)


@click.group(cls=PlanOrCommand, subcommand_metavar="PLAN [OPTIONS] | plan … | drift …")
def command() -> None:
    """Find out by experiments which settings make the difference, or how far records tell.

    `align bisect PLAN` runs your own command with some settings at the reference's values and some
    at the candidate's, until it has the smallest set that turns the verdict. It can be killed and
    resumed. `align bisect PLAN --help` lists its options.

    Exit codes: 0 nothing turns the verdict, 1 found, 2 could not run, 3 not decided.
    """


@command.command("plan")
@click.argument("reference", type=_PATH, metavar="REF")
@click.argument("candidate", type=_PATH, metavar="CAND")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD…")
@click.option("-o", "--out", type=_PATH, default=Path("plan.yaml"), show_default=True)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def write(reference: Path, candidate: Path, words: tuple[str, ...], out: Path, force: bool) -> None:
    """Write a plan: every setting that differs between two runs, and what to look at.

    CMD is what runs CAND's configuration; write {overrides} where KEY=VALUE belongs and {out} where
    the run folder does.
    """
    from align.bisect.write_plan import plan_text
    from dumps.store.atomic import write_atomic

    if out.exists() and not force:
        raise RunError(where=str(out), problem="it exists", fix="choose another -o or --force")
    write_atomic(out, plan_text(reference, candidate, words, out.parent))
    click.echo(f"plan: {out}: read it, then run `align bisect {out}`", err=True)


@command.command("drift")
@click.argument("reference", type=_PATH, metavar="REF")
@click.argument("candidate", type=_PATH, metavar="CAND")
@lang_option
@json_option
@click.pass_context
def drift(ctx: click.Context, reference: Path, candidate: Path, lang: str, as_json: bool) -> None:
    """Narrow a drift down by what two runs recorded: step, metric, task, row, token, layer.

    Nothing is run. Where the records end, it says what to record.
    """
    from align.bisect.drift import as_lines, drift_of, to_document
    from align.cli.report import compare_runs
    from align.cli.sides import find_run, load

    report = compare_runs(reference, candidate)
    runs = [load(find_run(path, ()), lambda _: None) for path in (reference, candidate)]
    found = drift_of(report, *runs)
    if as_json:
        click.echo(json.dumps(to_document(found), ensure_ascii=False, indent=1))
    else:
        click.echo("\n".join(as_lines(found, lang)))
    ctx.exit(found.exit_code)


@click.command()
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the trials; beside PLAN by default, as PLAN-trials.",
)
@click.option("--resume", is_flag=True, help="Go on in a folder that holds trials.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="At a time.")
@click.option("--budget-runs", type=click.IntRange(1), help="Trials, those before included.")
@click.option(
    "--budget-hours", type=click.FloatRange(0, min_open=True), help="Of all trials added up."
)
@click.option("--dry-run", is_flag=True, help="Show the knobs and the first two commands.")
@lang_option
@json_option
@click.pass_context
def _run(
    ctx: click.Context,
    out: Path | None,
    resume: bool,
    jobs: int,
    budget_runs: int | None,
    budget_hours: float | None,
    dry_run: bool,
    lang: str,
    as_json: bool,
    *,
    plan: Path,
) -> None:
    """Run the trials of PLAN until the smallest set of settings is known."""
    from align.bisect.drive import Budget, drive
    from align.bisect.read_plan import read_plan
    from align.cli.bisect_view import progress_table
    from dumps.store.atomic import write_atomic

    read = read_plan(plan)
    folder = out or plan.with_name(f"{plan.stem}-trials")
    if dry_run:
        _show_plan(read, folder)
        return
    if (folder / "trials").is_dir() and not resume:
        raise RunError(
            where=str(folder), problem="holds trials", fix="go on with --resume, or another -o"
        )
    with progress_table(read.knobs) as show:
        budget = Budget(budget_runs, budget_hours)
        driven = drive(read, folder, jobs=jobs, budget=budget, on_event=show)
    text = _present(driven, lang, as_json)
    write_atomic(folder / "result.json", text)
    ctx.exit(_exit_code(driven))


def _run_command(plan: Path) -> click.Command:
    """Return the command of one plan's file."""
    assert _run.callback is not None
    callback: Callable[..., Any] = partial(_run.callback, plan=plan)
    return click.Command("PLAN", callback=callback, params=_run.params, help=_run.help)


def _show_plan(plan: Plan, folder: Path) -> None:
    from math import ceil, log2

    from align.bisect.command import command_line
    from align.bisect.knob import changes_of
    from align.bisect.plan import describe
    from align.bisect.result import shown

    for knob in plan.knobs:
        between = f" ({knob.last - 1} between)" if knob.last > 1 else ""
        first, last = shown(knob.values[0]), shown(knob.values[-1])
        click.echo(f"{knob.kind.value} {knob.name}: {first} -> {last}{between}")
    for item in plan.left_out:
        click.echo(f"no knob: {item.name}: {item.why}")
    click.echo(describe(plan.test))
    depth = ceil(log2(max(2, len(changes_of(plan.knobs)))))
    click.echo(
        f"about {depth + 4} trials for one cause, {2 * depth + 6} for two that act together; "
        "repeats near the threshold come on top"
    )
    ends = (tuple(0 for _ in plan.knobs), tuple(knob.last for knob in plan.knobs))
    for name, setting in zip(("reference", "candidate"), ends, strict=True):
        tree = folder / "trees" / "COMMIT" if plan.tree else None
        click.echo(f"\n# every knob as the {name}")
        click.echo(command_line(plan, setting, folder / "trials" / "NAME" / "run", tree))


def _present(driven: Driven, lang: str, as_json: bool) -> str:
    """Show the result and return it as JSON text."""
    from align.bisect.result import confidence, document, fix, sentence, trials_table
    from align.cli.rung_view import table_lines

    text = json.dumps(document(driven), ensure_ascii=False, indent=1) + "\n"
    if as_json:
        click.echo(text, nl=False)
        return text
    click.echo("\n".join(table_lines(trials_table(driven), lang)))
    click.echo(f"\n{sentence(driven).in_language(lang)}")
    remedy, certain = fix(driven), confidence(driven)
    if remedy is not None:
        click.echo(remedy.in_language(lang))
    if certain is not None:
        label = "repeated near the threshold; all judged rightly with probability at least"
        label = label if lang == "en" else "阈值附近已重复试验；全部判定正确的概率至少为"
        click.echo(f"{label} {certain:.2f}")
    return text


def _exit_code(driven: Driven) -> ExitCode:
    from align.bisect.search import Ending

    ending = driven.search.ending
    if ending is Ending.FOUND:
        return ExitCode.FINDINGS
    if ending in (Ending.REFERENCE_IS_BAD, Ending.CANDIDATE_IS_GOOD):
        return ExitCode.ALIGNED
    return ExitCode.NOT_COMPARABLE
