"""``align train``: the bundled stack."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("settings", nargs=-1, metavar="[CONFIG] [KEY=VALUE]...")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("align-run"),
    show_default=True,
    help="The run folder.",
)
@click.option("--fault", help="Plant one known fault; `align demo --list` names them.")
@click.option("--resume", is_flag=True, help="Continue after the newest checkpoint in the folder.")
def command(settings: tuple[str, ...], out: Path, fault: str | None, resume: bool) -> None:
    """Train with the bundled stack and write a fully recorded run.

    CONFIG is a YAML file with verl's keys; without it the built-in model learns the built-in task.
    KEY=VALUE overrides one key, as in verl: trainer.total_training_steps=50.
    """
    from align.stack.config import load_config

    files = [Path(text) for text in settings if "=" not in text]
    overrides = [text for text in settings if "=" in text]
    if len(files) > 1:
        raise click.UsageError(f"one CONFIG at most, not {', '.join(map(str, files))}")
    config = load_config(files[0] if files else None, overrides)
    from align.stack.pipeline import Pipeline  # heavy; a bad configuration is refused before it
    from align.stack.train import train

    pipeline = Pipeline()
    if fault is not None:
        from align.stack.faults.registry import fault_named

        planted = fault_named(fault)
        planned = [*overrides, *planted.setting, *planted.overrides]
        config = load_config(files[0] if files else None, planned)
        pipeline = planted.change(pipeline) if planted.change else pipeline
    train(config, out, pipeline, resume=resume)
    click.echo(f"run: {out}", err=True)
