"""``align next``: the cheapest experiment that narrows the cause down."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import json_option, lang_option
from align.cli.progress import progress_bar
from align.cli.sides import find_run, load, size_bytes

_PATH = click.Path(path_type=Path)


@click.command("next")
@click.argument("reference", type=_PATH, metavar="[REF]")
@click.argument("candidate", type=_PATH, metavar="CAND", required=False)
@lang_option
@json_option
def command(reference: Path, candidate: Path | None, lang: str, as_json: bool) -> None:
    """Name the cheapest experiment that tells more about CAND, with its exact commands.

    With REF all rungs are compared first; a known cause gets its confirmation, an unknown one the
    cheapest run that separates what can have caused it. With one run it is examined alone.
    """
    from align.cli.next_view import as_document, as_text
    from align.inventory import take_inventory
    from align.ladder import climb
    from align.next.choose import choose
    from align.next.commands import side_of
    from align.next.situation import FREE, situation_alone, situation_of
    from reports.render.json import render

    runs = [find_run(path, ()) for path in (reference, candidate) if path is not None]
    with progress_bar(sum(map(size_bytes, runs))) as bar:
        data = [load(run, bar.advance) for run in runs]
        if len(data) == 2:
            report = climb(*data, on_rung=lambda rung: bar.stage(rung.value))
            situation = situation_of(report, *data)
        else:
            held = take_inventory(data[0]).readiness
            free = [r.missing for r in held if r.missing is not None and r.rung in FREE]
            situation = situation_alone(data[0], free)
        sides = [side_of(run) for run in data]
    advice = choose(situation, sides[0] if len(sides) == 2 else None, sides[-1])
    click.echo(render(as_document(advice)) if as_json else as_text(advice, lang), nl=not as_json)
