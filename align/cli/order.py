"""``align data order``: which rows a step of a run sees."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import json_option, lang_option

_PATH = click.Path(path_type=Path)
_SAMPLERS = "torchdata torch mindspeed_rl mindspeed_rl_old trl accelerate megatron sequential"


@click.command("order")
@click.argument("run", type=_PATH, metavar="RUN")
@click.option("--step", type=click.IntRange(min=1), required=True, help="Counted from 1.")
@click.option("--epoch", type=click.IntRange(min=0), help="Count --step in this epoch, from 0.")
@click.option("--data", "data_files", type=_PATH, multiple=True, help="RUN's data set, in order.")
@click.option("--map-key", "map_keys", multiple=True, help="prompt=FIELD or response=FIELD.")
@click.option("--num-rows", type=click.IntRange(min=1), help="Its rows, where it is not at hand.")
@click.option("--sampler", type=click.Choice(_SAMPLERS.split()), help="Found in RUN by default.")
@click.option("--index", type=_PATH, help="MindSpeed-RL's cached *_shuffle_idx.npy.")
@click.option("--resumed-at", type=click.IntRange(min=1), help="Last step before a restart.")
@click.option("--ranks", type=click.IntRange(min=1), help="Split the step over so many DP ranks.")
@click.option("--write", type=_PATH, help="Write the order of steps 1 to K into this file.")
@lang_option
@json_option
def order(
    run: Path,
    step: int,
    epoch: int | None,
    data_files: tuple[Path, ...],
    map_keys: tuple[str, ...],
    num_rows: int | None,
    sampler: str | None,
    index: Path | None,
    resumed_at: int | None,
    ranks: int | None,
    write: Path | None,
    lang: str,
    as_json: bool,
) -> None:
    """Predict which rows of its data set a step of RUN sees, in the loader's order."""
    from align.cli.order_view import StepOrder, as_document, as_text, file_lines
    from align.cli.sides import find_run, load
    from align.config.normalise import effective
    from align.data.index_cache import read_index
    from align.data.run_order import Given, RunOrder, read_data_sets
    from align.ladder import prompts_of_rows
    from dumps.store.atomic import write_atomic
    from reports.render.json import render

    data = load(find_run(run, ()), lambda _: None)
    ids = None if index is None else read_index(index)
    given = Given(read_data_sets(data_files, map_keys), num_rows, sampler, ids, resumed_at)
    config = effective(data.configs, data.run.manifest)
    found = RunOrder(data, config, given, prompts_of_rows)
    shown = StepOrder.of(str(run), found, step, epoch, ranks)
    if write is not None:
        write_atomic(write, "".join(file_lines(found, shown)))
        click.echo(f"wrote {write}", err=True)
    click.echo(render(as_document(shown)) if as_json else as_text(shown, lang), nl=not as_json)
    for problem in data.problems:
        click.echo(f"align: {problem}", err=True)
