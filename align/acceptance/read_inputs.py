"""Which files a judgement rests on, with their checksums, and the seeds they state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from align.config.normalise import effective
from align.config.rung import manifest_of
from align.core.report import RunSummary
from align.core.run import ArtifactKind
from align.ladder import summarise
from dumps.store.run_data import RunData

_JUDGED = (
    ArtifactKind.METRICS,
    ArtifactKind.CONFIG,
    ArtifactKind.ROLLOUT,
    ArtifactKind.EVALS,
    ArtifactKind.ENVIRONMENT,
)
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file as it was when it was judged."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Input:
    """One run: what it says of itself, its seeds by field of the schema, its files."""

    role: str  # "reference", "candidate" or "repeat"
    summary: RunSummary
    seeds: tuple[tuple[str, str], ...]
    files: tuple[InputFile, ...]


def read_input(role: str, data: RunData) -> Input:
    """Hash the files of a run that acceptance reads."""
    paths = {a.path for kind in _JUDGED for a in data.run.of_kind(kind)}
    return Input(
        role=role,
        summary=summarise(data),
        seeds=tuple(_seeds(data)),
        files=tuple(_file(path, data.run.root) for path in sorted(paths)),
    )


def _seeds(data: RunData) -> Iterator[tuple[str, str]]:
    values = effective(data.configs, manifest_of(data)).values
    for name in sorted(values):
        if name.rpartition(".")[2] == "seed":
            yield name, str(values[name].value)


def _file(path: Path, root: Path) -> InputFile:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    inside = path.is_relative_to(root)
    name = str(path.relative_to(root) if inside else path)
    return InputFile(name, path.stat().st_size, digest.hexdigest())
