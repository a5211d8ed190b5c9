"""``align replay``: a training command on rollouts that another run recorded."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.run_place import RunPlace
from align.core.errors import ExitCode, RunError

_PATH = click.Path(path_type=Path)
_SOURCES = click.Choice(["recorded", "recomputed"])


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD ...")
@click.option(
    "--rollouts", type=RunPlace(), required=True, metavar="RUN", help="Recorded rollouts."
)
@click.option("--order", type=RunPlace(), metavar="RUN_OR_FILE", help="Give the rows in its order.")
@click.option(
    "-o",
    "--output",
    "out",
    type=_PATH,
    default=Path("replay-run"),
    show_default=True,
    metavar="RUN",
)
@click.option(
    "--what",
    metavar="KINDS",
    help="Kinds to record, as of `align capture`. Default: its own, and what RUN's capture had.",
)
@click.option("--steps", default="", metavar="1-3,10", help="Record only these training steps.")
@click.option("--allow-missing", is_flag=True, help="Generate rows that are not recorded.")
@click.option("--log-probs", type=_SOURCES, default="recorded", show_default=True)
@click.option("--rewards", type=_SOURCES, default="recomputed", show_default=True)
@click.option("--tokenizer", type=_PATH, help="Of the recording model, where RUN has text alone.")
@click.option(
    "--max-response-length", type=click.IntRange(min=1), help="At which recorded text was cut."
)
def command(
    cmd: tuple[str, ...],
    rollouts: Path,
    order: Path | None,
    out: Path,
    what: str | None,
    steps: str,
    allow_missing: bool,
    log_probs: str,
    rewards: str,
    tokenizer: Path | None,
    max_response_length: int | None,
) -> None:
    """Run CMD on recorded responses, found by prompt and sample; stop where they do not fit.

    The run is captured into -o, and its align-run.json says row by row what was used. Exits with 2
    where the replay was refused or its proof fails, else with the exit code of CMD.
    """
    from align.cli.replay_view import as_text
    from align.rollout.replayable import Order, read_order, read_replayable
    from dumps.capture.plan import parse_kinds, parse_steps
    from dumps.inject.launch import capture_like, prepare, prompts_in_order, run_replayed
    from dumps.inject.plan import ReplayPlan, Source

    if not cmd:
        raise RunError(where="align replay", problem="no command", fix="give it after --")
    recorded = read_replayable(rollouts, tokenizer, max_response_length)
    plan = ReplayPlan(
        run=out.resolve(),
        log_probs=Source(log_probs),
        rewards=Source(rewards),
        allows_missing=allow_missing,
        sets_order=order is not None,
    )
    kinds = parse_kinds(what) if what else ()
    capture = capture_like(rollouts, plan.run, kinds, parse_steps(steps))
    given = Order([]) if order is None else read_order(order)
    prepare(plan, recorded.rows, prompts_in_order(given.rows), recorded.tokenizer, given.data)
    replayed = run_replayed(plan, cmd, capture)
    click.echo(as_text(plan.run, recorded.marks, replayed), err=True)
    failed = bool(replayed.refused) or (not replayed.outcome.exit_code and not replayed.proof.holds)
    code = ExitCode.COULD_NOT_RUN if failed else replayed.outcome.exit_code
    click.get_current_context().exit(code)
