"""``align config translate``: the same run in another framework's keys."""

from __future__ import annotations

from pathlib import Path

import click

from align.cli.options import json_option
from align.cli.sides import find_run, load


@click.command("translate")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "--to",
    "target",
    type=click.Choice(["mindspeed_rl", "verl"]),
    required=True,
    help="Framework to write for: MindSpeed-RL 2.3.0 or verl 0.9.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the files; without it they are printed.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@json_option
def translate(run: Path, target: str, output: Path | None, force: bool, as_json: bool) -> None:
    """Write RUN's configuration for the other framework.

    RUN is a folder or a file: YAML, printed configuration, Hydra folder, launch script. Every key
    is commented with where its value comes from, every setting without counterpart is listed, and
    the result is read back and compared before it is written.
    """
    import json

    from align.config.normalise import effective
    from align.config.rung import manifest_of
    from align.config.translate import translate as in_keys_of
    from align.config.translation_text import files
    from align.core.errors import RunError
    from dumps.store.atomic import write_atomic

    data = load(find_run(run, ()), lambda _: None)
    translation = in_keys_of(effective(data.configs, manifest_of(data)), target)
    texts = files(translation)
    matters = [left for left in translation.left if left.matters]
    if output is not None:
        existing = [output / name for name in texts if (output / name).exists()]
        if existing and not force:
            raise RunError(
                where=str(existing[0]), problem="it exists", fix="choose another -o or --force"
            )
        for name, text in texts.items():
            write_atomic(output / name, text)
    if as_json:
        document = {
            "schema_version": 1,
            "target": target,
            "version": translation.version,
            "files": texts,
            "values": {w.key: w.value for w in translation.written},
            "left": [
                {
                    "field": left.source.field,
                    "key": left.source.raw.key,
                    "value": left.source.value,
                    "instead": left.instead.value if left.instead else None,
                    "matters": left.matters,
                }
                for left in translation.left
            ],
        }
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
    elif output is None:
        for name, text in texts.items():
            click.echo(f"# ---- {name}\n{text}")
    for problem in data.problems:
        click.echo(f"align: {problem}", err=True)
    where = "" if output is None else f" in {output}: {', '.join(texts)}"
    click.echo(
        f"{len(translation.written)} keys written{where}; {len(matters)} settings that matter have "
        f"no counterpart, {len(translation.left) - len(matters)} that do not.",
        err=True,
    )
