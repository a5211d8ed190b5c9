"""An experiment as the commands of this user's framework, with what the run's own were."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from align.core.config_value import ConfigValue, ProvenanceKind
from align.core.text import Text
from align.next.experiment import Plan, Settings
from align.next.spelling import DIALECTS, Dialect, spelled
from dumps.store.run_data import RunData

_UNKNOWN = "YOUR_COMMAND"
_LINE = 96
_LONGEST_TEXT = 190  # provenance quotes 200 characters


@dataclass(frozen=True, slots=True)
class Side:
    """How one side is started.

    Args:
        path: of the run, as the user gave it.
        base: program and the settings the run was started with.
        complete: ``base`` is what was recorded; else the reader has to fill it in.
    """

    path: str
    dialect: Dialect | None
    base: tuple[str, ...]
    complete: bool


def side_of(run: RunData) -> Side:
    """Return how a run was started: its own overrides, where it recorded any."""
    dialect = DIALECTS.get(run.framework or "")
    path = run.run.label
    if dialect is None:
        return Side(path, None, (_UNKNOWN,), complete=False)
    program = (dialect.program,)
    if run.framework == "mindspeed_rl":
        names = [Path(c.source).stem for c in run.configs if c.format == "mindspeed_rl_yaml"]
        if names:
            return Side(path, dialect, (*program, f"--config-name {shlex.quote(names[0])}"), True)
    overrides = [
        _written(value)
        for config in run.configs
        if config.format in ("hydra_overrides", "launch_command")
        for value in config.values.values()
        if value.provenance.kind is ProvenanceKind.OVERRIDE
    ]
    if overrides:
        return Side(path, dialect, (*program, *map(shlex.quote, dict.fromkeys(overrides))), True)
    return Side(path, dialect, (_UNKNOWN,), complete=False)


def commands_of(plan: Plan, reference: Side | None, candidate: Side) -> tuple[str, ...]:
    """Return what to type, one command after the other; long ones on several lines."""
    folders = f"{plan.id}-reference", f"{plan.id}-candidate"
    ours = reference or candidate
    recorded = folders[0] if plan.reference is not None else ours.path
    lines = []
    if plan.reference is not None:
        start = _started(ours, plan.reference, plan, folders[0])
        lines.append(_wrapped(("align capture", f"-o {folders[0]}", "--", *start)))
    if plan.candidate is not None:
        start = _started(candidate, plan.candidate, plan, folders[1])
        tool = ("align capture", f"-o {folders[1]}", "--")
        if plan.replays:
            tool = ("align replay", f"--rollouts {shlex.quote(recorded)} -o {folders[1]}", "--")
        lines.append(_wrapped((*tool, *start)))
    compare = plan.compare.replace("REFERENCE", shlex.quote(ours.path))
    compare = compare.replace("CANDIDATE", shlex.quote(candidate.path))
    made = folders[1] if plan.candidate is not None else candidate.path
    names = {"reference": shlex.quote(recorded), "candidate": shlex.quote(made)}
    lines.append(compare.format(id=plan.id, **names))
    return tuple(lines)


def note_on(sides: tuple[Side, ...]) -> Text | None:
    """Say what the reader has to fill in."""
    if all(side.complete for side in sides):
        return None
    return Text(
        f"{_UNKNOWN} stands for the command that started the run: its launch script or its "
        ".hydra folder is not among the recorded files.",
        f"{_UNKNOWN} 代表启动该运行的命令：已记录的文件中没有启动脚本或 .hydra 目录。",
    )


def _started(side: Side, settings: Settings, plan: Plan, folder: str) -> tuple[str, ...]:
    """Return the run's own command with what the experiment sets; a key set twice counts once."""
    if side.dialect is None:
        return (*side.base, *(f"{key}={value}" for key, value in settings.items()), *plan.raw)
    steps: Settings = {} if plan.num_steps is None else {"trainer.total_steps": plan.num_steps}
    cheap = () if plan.num_steps is None else side.dialect.cheap
    own = (text.format(folder=folder) for text in side.dialect.own)
    new = (*spelled(side.dialect, {**settings, **steps}), *map(shlex.quote, plan.raw), *cheap, *own)
    set_again = {_key(argument) for argument in new}.union(side.dialect.dropped)
    kept = (argument for argument in side.base if _key(argument) not in set_again)
    return (*kept, *new)


def _key(argument: str) -> str:
    """Return the key of an override; a word that is none is its own."""
    return argument.strip("'").lstrip("+").partition("=")[0]


def _written(value: ConfigValue) -> str:
    """Return an override as it was written, with Hydra's marks, where the file shows it whole."""
    text = (value.provenance.text or "").strip().removeprefix("- ")
    whole = text.lstrip("+").startswith(f"{value.key}=") and len(text) < _LONGEST_TEXT
    return text if whole and " " not in text else f"{value.key}={shown(value.value)}"


def _wrapped(parts: tuple[str, ...]) -> str:
    """Join parts by blanks, on further lines after a backslash where they are long."""
    lines, line = [], ""
    for part in parts:
        if line and len(line) + len(part) > _LINE:
            lines.append(line)
            line = f"  {part}"
        else:
            line = f"{line} {part}" if line else part
    return " \\\n".join([*lines, line])


def shown(value: object) -> str:
    """Write a value as Hydra reads it."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return "[" + ",".join(map(shown, value)) + "]"
    return str(value)
