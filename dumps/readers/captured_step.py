"""One rank's part of a captured step: ``steps/STEP/NAME.safetensors``.

Tensors ``update.U.micro.M.NAME`` of micro-batch M of optimizer step U. The rows of
``update.U.gradient_squares`` and ``modules`` are named by ``notes``, JSON as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.optional import require
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress
from dumps.readers.safetensors_numbers import numbers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FORMAT = "captured_step"
VERSION = "1"
_MARK = b'"align_capture"'


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """One rank's part.

    Args:
        role: of the process, such as "actor".
        tensors: by name.
        parameters: names of the rows of each ``gradient_squares``.
        modules: what each row of ``modules`` is: module, phase, shape, dtype.
        rng: hashes of the generators' states before the first update.
        losses_add_up: whether the losses of an update's micro-batches sum to its own, averaged
            over ranks.
    """

    path: Path
    step: int
    rank: int
    role: str
    tensors: Mapping[str, npt.NDArray[np.generic]]
    parameters: Mapping[str, tuple[str, ...]]
    modules: tuple[Mapping[str, Any], ...]
    rng: Mapping[str, str]
    losses_add_up: bool

    @property
    def num_updates(self) -> int:
        """Optimizer steps that were recorded."""
        numbers = [int(n.split(".")[1]) for n in self.tensors if n.startswith("update.")]
        return 1 + max(numbers, default=-1)

    def gradient_squares(self, update: int) -> dict[str, float]:
        """Return the squared sums by parameter, of the shards this rank holds."""
        name = f"update.{update}.gradient_squares"
        if name not in self.tensors:
            return {}
        return dict(zip(self.parameters[name], self.tensors[name].tolist(), strict=True))


def read(path: Path, progress: Progress = no_progress) -> CapturedStep:
    """Read all of a file.

    Raises:
        DumpError: The file is damaged, or of a version we do not know.
        MissingPackageError: safetensors is not installed.
    """
    safetensors = require("safetensors", extra="torch")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: numbers(path, file, name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("align_capture") != VERSION:
            raise ValueError(f"its version is {metadata.get('align_capture')}")
        notes = json.loads(tensors.pop("notes").tobytes())
        progress(path.stat().st_size)
        return CapturedStep(
            path=path,
            step=int(notes["step"]),
            rank=int(notes["rank"]),
            role=str(notes["role"]),
            tensors=tensors,
            parameters={name: tuple(rows) for name, rows in notes["parameters"].items()},
            modules=tuple(notes["modules"]),
            rng=notes["rng_at_first_update"],
            losses_add_up=bool(notes["losses_add_up"]),
        )
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DumpError(
            where=str(path),
            problem=f"is no captured step of version {VERSION} ({error})",
            fix="capture the step again, or leave the file out",
        ) from error


def _sniff(glimpse: Glimpse) -> bool:
    return _MARK in glimpse.head[:200] and glimpse.head[8:9] == b"{"


READER = Reader(FORMAT, ArtifactKind.CAPTURE, _sniff, read)
