"""``align capture``: run a training command and record what it does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from align.core.errors import RunError

if TYPE_CHECKING:
    from dumps.capture.plan import CapturePlan

_KINDS = "rollouts,inputs,log_probs,grad_norms,weights,config,metrics,rng,modules,sketches"


@click.command()
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD ...")
@click.option(
    "-o", "--output", "run", type=click.Path(path_type=Path), required=True, metavar="RUN"
)
@click.option(
    "--what",
    metavar="KINDS",
    help=f"Some of {_KINDS}. Default: all but weights, modules and sketches.",
)
@click.option("--steps", default="", metavar="1-3,10", help="Only these training steps.")
@click.option("--ranks", default="", metavar="0,1", help="Tensors of these ranks only.")
@click.option("--modules", metavar="PATTERN", help="Only these modules, such as '*.mlp'.")
@click.option(
    "--backend",
    type=click.Choice(["align", "msprobe"]),
    default="align",
    show_default=True,
    help="What looks at modules. msprobe dumps every module of the actor's update into "
    "RUN/msprobe; it patches torch, slows training and is not bit by bit invisible.",
)
@click.option(
    "--tensors",
    multiple=True,
    metavar="PATTERN",
    help="Keep these modules' tensors whole beside their sketches, such as 'model.layers.3.*'.",
)
@click.option(
    "--zoom",
    metavar="REPORT[:ID]",
    help="Keep whole what surrounds a finding of this report.json, the verdict's unless one is "
    "named, in its step.",
)
@click.option(
    "--noise",
    is_flag=True,
    help="Move embeddings by one rounding unit: the run shows what rounding does, for "
    "`align layers diff --noise`. Changes the training.",
)
@click.option("--stop-on", type=click.Choice(["error"]), help="End the run at a broken invariant.")
@click.option("--plan-only", is_flag=True, help="Write RUN/capture.json and run nothing.")
def command(
    cmd: tuple[str, ...],
    run: Path,
    what: str | None,
    steps: str,
    ranks: str,
    modules: str | None,
    backend: str,
    tensors: tuple[str, ...],
    zoom: str | None,
    noise: bool,
    stop_on: str | None,
    plan_only: bool,
) -> None:
    """Run CMD, record what it does into RUN, and change nothing of what it does.

    No file of a framework is edited. Where CMD cannot be wrapped, write the plan with --plan-only
    and set ALIGN_CAPTURE=RUN/capture.json for every process; see docs/how-to/capture.md.
    """
    from align.cli.capture_view import as_text
    from dumps.capture.launch import refuse_used_folder, run_captured
    from dumps.capture.msprobe_backend import prepare
    from dumps.capture.plan import Backend, What, write_plan

    if zoom is not None:
        from align.layers.zoom import read_zoom

        around = read_zoom(zoom)
        tensors, steps = (*tensors, *around.modules), steps or str(around.step)
    plan = _plan(run, what, steps, ranks, modules, stop_on)
    plan = replace(plan, backend=Backend(backend), tensors=tensors, perturbs=noise)
    if (tensors or noise) and What.SKETCHES not in plan.what:
        plan = replace(plan, what=(*plan.what, What.SKETCHES))
    if plan.backend is Backend.MSPROBE:
        refuse_used_folder(plan.run)
        prepare(plan)
    if plan_only:
        refuse_used_folder(plan.run)
        click.echo(f"wrote {write_plan(plan)}", err=True)
        return
    if not cmd:
        raise RunError(where="align capture", problem="no command", fix="give it after --")
    outcome = run_captured(plan, cmd)
    click.echo(as_text(plan.run, outcome), err=True)
    click.get_current_context().exit(outcome.exit_code)


def _plan(
    run: Path, what: str | None, steps: str, ranks: str, modules: str | None, stop_on: str | None
) -> CapturePlan:
    from dumps.capture.plan import BY_DEFAULT, CapturePlan, What, parse_kinds, parse_steps

    kinds = parse_kinds(what) if what else BY_DEFAULT
    if modules and not {What.MODULES, What.SKETCHES} & set(kinds):
        kinds = (*kinds, What.MODULES)
    elif What.MODULES in kinds and not modules:
        raise RunError(
            where="--what", key="modules", problem="which modules is not said", fix="add --modules"
        )
    numbers = [rank.strip() for rank in ranks.split(",") if rank.strip()]
    if not all(number.isdigit() for number in numbers):
        raise RunError(where="--ranks", problem=f"{ranks!r} is no list of ranks", fix="write 0,1")
    return CapturePlan(
        run=run.resolve(),
        what=kinds,
        steps=parse_steps(steps),
        ranks=tuple(map(int, numbers)),
        modules=modules,
        stops_on_error=stop_on == "error",
    )
