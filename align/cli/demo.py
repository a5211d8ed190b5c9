"""``align demo``: two small runs, the second with one known fault, and the report on them."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from align.cli.options import lang_option
from align.cli.progress import count_bar
from align.cli.report import compare_runs, present
from align.core.errors import ExitCode, RunError
from align.core.optional import require

if TYPE_CHECKING:
    from align.core.report import Report
    from align.stack.zoo import Trial

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE_FINDING = "config.rollout.temperature"  # what was changed in examples/candidate

FAULT = "rms_norm_eps"  # the field report's second case
CLEAN = "float32_split_k"  # another device's rounding


@click.command()
@click.option("--fault", default=FAULT, show_default=True, help="The fault to plant.")
@click.option("--clean", is_flag=True, help="Plant none: the second run differs in rounding only.")
@click.option("--list", "list_all", is_flag=True, help="Show all faults by rung.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-report"),
    show_default=True,
    help="Folder for the report; the runs are kept in its folder runs.",
)
@lang_option
@click.pass_context
def command(
    ctx: click.Context, fault: str, clean: bool, list_all: bool, out: Path, lang: str
) -> None:
    """Train two small models, the second with one known fault, and write the report on them.

    Exit 0 when the report leads to the planted fault (with --clean: when it raises no alarm),
    1 when it does not. Without torch, two recorded runs are compared instead.
    """
    if list_all:
        click.echo(_listing())
    elif find_spec("torch") is None and fault == FAULT and not clean:
        ctx.exit(ExitCode.ALIGNED if _on_examples(out, lang) else ExitCode.FINDINGS)
    else:
        ctx.exit(ExitCode.ALIGNED if _on_fresh_runs(fault, clean, out, lang) else ExitCode.FINDINGS)


def _on_fresh_runs(fault: str, clean: bool, out: Path, lang: str) -> bool:
    """Train both runs, report, and tell whether the report is right."""
    require("torch", extra="torch")
    require("transformers", extra="torch")
    from align.stack.clean_pairs import clean_pairs
    from align.stack.faults.registry import fault_named
    from align.stack.zoo import judge, make_pair

    trial = clean_pairs()[CLEAN] if clean else fault_named(fault)
    click.echo(f"planted in the candidate: {trial.what}", err=True)
    with count_bar() as bar:
        reference, candidate = make_pair(trial, out / "runs", bar.total, bar.done)
    report = compare_runs(reference, candidate)
    present(report, out, lang, as_json=False)
    right = judge(trial, report, acts=True).right
    click.echo(_outcome(trial, report, right), err=True)
    return right


def _on_examples(out: Path, lang: str) -> bool:
    if not EXAMPLES.is_dir():
        raise RunError(
            where=str(EXAMPLES),
            problem="the example runs are not part of this installation",
            fix="pip install 'npu-align[torch]', which trains two small runs instead",
        )
    click.echo(
        "torch is not installed, so nothing is trained: this is the report on two recorded runs "
        "of verl 0.9.1, the second with the sampling temperature migrated wrongly. To train with "
        "a fault of your choice: pip install 'npu-align[torch]'",
        err=True,
    )
    report = compare_runs(EXAMPLES / "reference", EXAMPLES / "candidate")
    present(report, out, lang, as_json=False)
    return report.verdict.finding_id == EXAMPLE_FINDING


def _outcome(trial: Trial, report: Report, right: bool) -> str:
    named = report.verdict.finding_id or "no cause"
    expected = getattr(trial, "finding_id", None)
    if expected is None:
        return "right: nothing was planted, and there is no alarm" if right else f"alarm: {named}"
    if right:
        return f"right: the report names what was planted, {expected}"
    return f"missed: planted was {expected}, the report names {named}"


def _listing() -> str:
    require("torch", extra="torch")
    require("transformers", extra="torch")
    from align.stack.faults.registry import faults

    lines = []
    for rung, found in groupby(faults().values(), key=lambda fault: fault.rung.value):
        lines.append(rung)
        for fault in found:
            place = f" in {fault.module}" if fault.module else ""
            lines.append(f"  {fault.name:<26} {fault.what}")
            lines.append(f"{'':<29}{fault.finding_id}{place}; {fault.field_report}")
    return "\n".join(lines)
