"""What the ranks of a captured run kept, step by step, each read when its step is asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from align.core.errors import AlignError
from align.core.run import Artifact, ArtifactKind
from dumps.readers.captured_step import CapturedStep
from dumps.readers.registry import reader_named
from dumps.store.run_data import RunData


def captured_parts(
    run: RunData, role: str, step: int | None = None
) -> Iterator[tuple[int, list[CapturedStep]]]:
    """Yield the steps in order, each with the parts of all ranks; one step alone where it is given.

    Args:
        role: of the processes, whose files are ``steps/STEP/ROLE-RANK.safetensors``.
    """
    by_folder: dict[str, list[Artifact]] = defaultdict(list)
    for artifact in run.run.of_kind(ArtifactKind.CAPTURE):
        named = artifact.path.parent.name
        is_wanted = step is None or (named.isdecimal() and int(named) == step)
        if is_wanted and artifact.path.name.startswith(f"{role}-"):
            by_folder[str(artifact.path.parent)].append(artifact)
    for folder in sorted(by_folder, key=lambda name: (len(name), name)):
        parts = [part for file in by_folder[folder] if (part := _read(run, file)) is not None]
        if parts:
            yield parts[0].step, sorted(parts, key=lambda part: part.rank)


def _read(run: RunData, file: Artifact) -> CapturedStep | None:
    """Read a part; one that cannot be read is a problem of its run."""
    try:
        part = reader_named(file.format, file.kind).read(file.path, lambda _: None)
    except AlignError as error:
        run.keep_problem(error)
        return None
    return part if isinstance(part, CapturedStep) else None
