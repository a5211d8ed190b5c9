"""``align watch``: a running job against a finished reference."""

from __future__ import annotations

import time
from pathlib import Path

import click

from align.cli.options import json_option, lang_option
from align.cli.sides import find_run, load
from align.core.errors import ExitCode, RunError

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--reference", type=_PATH, required=True, metavar="REF", help="A finished run.")
@click.argument("candidate", type=_PATH, metavar="CAND")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, at everything there is, and exit.")
@click.option(
    "--metric", "metrics", multiple=True, help="Test this metric instead; may be repeated."
)
@click.option("--command", "hook", metavar="CMD", help="Run CMD at an alarm, JSON on its stdin.")
@click.option("--webhook", metavar="URL", help="Post the JSON to URL at an alarm.")
@click.option("--stop-pid", type=int, metavar="PID", help="End this process at an alarm (SIGTERM).")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write what was seen after every look; in CAND's folder `align report` shows it.",
)
@lang_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    reference: Path,
    candidate: Path,
    interval: float,
    once: bool,
    metrics: tuple[str, ...],
    hook: str | None,
    webhook: str | None,
    stop_pid: int | None,
    out: Path | None,
    lang: str,
    as_json: bool,
) -> None:
    """Follow CAND (a log, TensorBoard folder or run folder) and say when it leaves REF.

    Exits 1 at the first alarm, 0 when CAND reaches REF's last step without one. At most one clean
    run of 500 steps in a hundred gives an alarm.
    """
    from align.watch.follow import Follower
    from align.watch.record import Recorder
    from align.watch.watch import Watch
    from align.watch.words import alarm_text, as_document, standing_text
    from align.watch.write_alerts import Actions, check, set_off
    from reports.render.json import render

    actions = Actions(hook, webhook, stop_pid)
    check(actions)
    log = load(find_run(reference, ()), lambda _: None).metrics
    if log.step_range is None:
        raise RunError(where=str(reference), problem="records no step", fix="give a finished run")
    watch = Watch(log, Follower(candidate), metrics)
    recorder = Recorder(out, str(reference), str(candidate))
    while True:
        standing = watch.poll()
        recorder.write(watch, standing)
        if standing.has_news and not standing.alarms:
            click.echo(standing_text(standing).in_language(lang), err=True)
        if standing.alarms or standing.is_finished or once:
            break
        time.sleep(interval)
    document = as_document(standing, str(reference), str(candidate))
    for alarm in standing.alarms:
        click.echo(f"ALARM: {alarm_text(alarm).in_language(lang)}", err=True)
    for said in set_off(actions, document) if standing.alarms else ():
        click.echo(said, err=True)
    if as_json:
        click.echo(render(document), nl=False)
    if standing.alarms:
        ctx.exit(ExitCode.FINDINGS)
    ctx.exit(ExitCode.NOT_COMPARABLE if standing.step is None else ExitCode.ALIGNED)
