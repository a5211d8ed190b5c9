"""Megatron's legacy checkpoints: one ``model_optim_rng.pt`` a rank, in ``mp_rank_*`` folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from align.core.errors import DumpError
from dumps.readers.inert_pickle import Inert
from dumps.readers.weights import WeightFiles, WeightShard
from dumps.readers.weights_torch import read_torch, stored_tensors

_RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_FILES = ("model_optim_rng.pt", "model_rng.pt")


def iteration_folder(path: Path) -> Path:
    """Return the folder of one iteration: the latest one that a run's folder names.

    Raises:
        DumpError: The iteration it names is not there.
    """
    tracker = path / "latest_checkpointed_iteration.txt"
    if not tracker.is_file():
        return path
    text = tracker.read_text(encoding="utf-8").strip()
    folder = path / (f"iter_{int(text):07d}" if text.isdigit() else text)
    if not folder.is_dir():
        raise DumpError(
            where=str(tracker),
            problem=f"names {text!r}, and there is no folder {folder.name}",
            fix="give the folder of an iteration itself",
        )
    return folder


def rank_files(folder: Path) -> dict[Path, tuple[int, ...]]:
    """Return every rank's file with the numbers in its folder's name."""
    found = {}
    for child in sorted(folder.glob("mp_rank_*")):
        match = _RANK.fullmatch(child.name)
        file = next((child / name for name in _FILES if (child / name).is_file()), None)
        if match and file is not None:
            found[file] = tuple(int(text) for text in match.groups() if text is not None)
    return found


def read_megatron(path: Path, *, unsafe: bool = False) -> WeightFiles:
    """Read the headers of every rank's file.

    Raises:
        DumpError: A file is damaged, or of an old format and ``unsafe`` is not given.
    """
    folder = iteration_folder(path)
    shards: list[WeightShard] = []
    arguments: Mapping[str, Any] = {}
    for file, numbers in rank_files(folder).items():
        saved = read_torch(file, unsafe=unsafe)
        if not isinstance(saved, Mapping):
            raise DumpError(
                where=str(file),
                problem="holds no dictionary with a model",
                fix="give a checkpoint that Megatron's trainer saved",
            )
        arguments = arguments or _arguments(saved.get("args"))
        shards += _shards(file, saved, _coordinates(numbers, arguments))
    missing = _missing(folder, shards, arguments)
    return WeightFiles(str(path), "megatron", tuple(shards), missing, arguments)


def _shards(file: Path, saved: Mapping[str, Any], at: tuple[int, int, int]) -> list[WeightShard]:
    """Return the model, or the virtual chunks model0, model1, … of one file."""
    names = ["model"] if "model" in saved else [f"model{i}" for i in range(len(saved))]
    chunks = [saved[name] for name in names if name in saved]
    return [
        WeightShard(stored_tensors(file, chunk), at[0], at[1], at[2], number)
        for number, chunk in enumerate(chunks)
    ]


def _arguments(args: Any) -> Mapping[str, Any]:
    state = args.state if isinstance(args, Inert) else getattr(args, "__dict__", args)
    return state if isinstance(state, Mapping) else {}


def _coordinates(numbers: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return tensor, pipeline and expert rank; a lone second number is the pipeline's.

    It is the expert's where the saved arguments say that there is no pipeline.
    """
    tensor, *rest = numbers
    if len(rest) == 1 and arguments.get("pipeline_model_parallel_size") == 1:
        return tensor, 0, rest[0]
    pipeline, expert = (*rest, 0, 0)[:2]
    return tensor, pipeline, expert


def _missing(
    folder: Path, shards: list[WeightShard], arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Name the ranks that the numbering or the saved arguments call for and that have no file."""
    there = {(s.tensor_rank, s.pipeline_rank, s.expert_rank) for s in shards}
    if not there:
        return ()
    sizes = [max(axis) + 1 for axis in zip(*there, strict=True)]
    for place, name in enumerate(("tensor", "pipeline", "expert")):
        stated = arguments.get(f"{name}_model_parallel_size")
        if isinstance(stated, int):
            sizes[place] = max(sizes[place], stated)
    lacking = (
        (t, p, e)
        for t in range(sizes[0])
        for p in range(sizes[1])
        for e in range(sizes[2])
        if (t, p, e) not in there
    )
    return tuple(
        f"{folder}: tensor rank {t}, pipeline rank {p}, expert rank {e}" for t, p, e in lacking
    )
