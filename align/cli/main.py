"""Entry point of ``align``: finds the command, runs it, turns errors into one line."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from align import __version__
from align.core.errors import AlignError, ExitCode

# name -> (module, one-line help); a module is imported only when its command is called.
_COMMANDS = {
    "report": ("align.cli.report", "Compare two runs and write the report: the main job."),
    "run": ("align.cli.run", "Say what a run folder holds, and write its manifest."),
    "config": ("align.cli.config", "Compare what the two configurations really do."),
    "doctor": ("align.cli.doctor", "Examine one run: problems, stack, where its time goes."),
    "tokenizer": ("align.cli.tokenizer", "Compare how text becomes ids on both sides."),
    "data": ("align.cli.data", "Compare the rows each step trains on."),
    "rollout": ("align.cli.rollout", "Compare what the models answered."),
    "tokens": ("align.cli.tokens", "Compare the ids, masks and positions trained on."),
    "layers": ("align.cli.layers", "Find the first module that differs beyond rounding."),
    "evals": ("align.cli.evals", "Compare benchmark results of both models."),
    "curves": ("align.cli.curves", "Compare metrics over steps."),
    "accept": ("align.cli.accept", "Judge a candidate under a policy: pass, fail, undecided."),
    "next": ("align.cli.next", "Name the cheapest experiment that narrows the cause down."),
    "watch": ("align.cli.watch", "Follow a running job and say when it leaves the reference."),
    "capture": ("align.cli.capture", "Run a training command and record what it does."),
    "replay": ("align.cli.replay", "Run a training command on rollouts recorded elsewhere."),
    "weights": ("align.cli.weights", "Compare and convert checkpoints: the same weights?"),
    "referee": ("align.cli.referee", "Recompute a recorded step in float64, link by link."),
    "bisect": ("align.cli.bisect", "Find by experiments which setting makes the difference."),
    "train": ("align.cli.train", "Train with the bundled stack: grpo, ppo, dapo, dpo."),
    "demo": ("align.cli.demo", "Plant a known fault in a small run, and report on it."),
    "zoo": ("align.cli.zoo", "Count how often the report is right on known faults."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, so that --help is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(_COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in _COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="align")
def cli() -> None:
    """Find out why an RL run on an NPU drifts away from the same run on a GPU.

    Exit codes: 0 aligned, 1 findings at or above --fail-on, 2 could not run, 3 nothing comparable.
    """


def main() -> None:
    """Run the command line; exit 2 with one line for input that cannot be used."""
    try:
        # Without standalone mode click returns the code of ctx.exit() instead of leaving with it.
        sys.exit(cli.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.COULD_NOT_RUN)
    except AlignError as error:
        _fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; nothing half-written is left behind", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our stdout (head, less) has closed it: not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("ALIGN_DEBUG"):
            raise
        _fail(
            f"internal error: {type(error).__name__}: {error}; this is our bug, not yours: "
            "run again with ALIGN_DEBUG=1 and report the traceback"
        )


def _fail(message: str) -> None:
    click.echo(f"align: {message}", err=True)
    sys.exit(ExitCode.COULD_NOT_RUN)


if __name__ == "__main__":
    main()
