"""The training batch of a step: ``trainer_inputs/{step}.safetensors``, tensors named as verl's.

b rows; the last r columns of ``input_ids`` are ``responses``, those before hold the prompts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import DumpError
from align.core.optional import require
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.safetensors_numbers import numbers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FORMAT = "trainer_inputs"
REQUIRED = frozenset({"input_ids", "attention_mask", "responses"})
_LENGTH_BYTES = 8
_STEP_IN_NAME = re.compile(r"(?:.*[_-])?(\d{1,7})")


@dataclass(frozen=True, slots=True)
class TrainerInputs:
    """One step's batch; a tensor is read from its file when asked for.

    Args:
        path: the file.
        step: training step by the file's name; None where the name has no number.
        shapes: of every tensor by name.
    """

    path: Path
    step: int | None
    shapes: Mapping[str, tuple[int, ...]]

    def tensor(self, name: str) -> npt.NDArray[np.generic] | None:
        """Read one tensor with the dtype it was saved in, bfloat16 as float32; None without it.

        Raises:
            DumpError: The file cannot be read, or NumPy has no such dtype.
            MissingPackageError: safetensors is not installed.
        """
        if name not in self.shapes:
            return None
        safetensors = require("safetensors", extra="torch")
        try:
            with safetensors.safe_open(self.path, framework="numpy") as file:
                return numbers(self.path, file, name)
        except (safetensors.SafetensorError, OSError, TypeError, AttributeError) as error:
            raise _broken(self.path, error, name) from error


def read(path: Path, progress: Progress) -> TrainerInputs:
    """Read names and shapes.

    Raises:
        DumpError: The file is cut off or damaged.
        MissingPackageError: safetensors is not installed.
    """
    safetensors = require("safetensors", extra="torch")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise _broken(path, error) from error
    progress(path.stat().st_size)
    named = _STEP_IN_NAME.fullmatch(path.stem)
    return TrainerInputs(path, int(named[1]) if named else None, shapes)


def _broken(path: Path, error: Exception, name: str | None = None) -> DumpError:
    return DumpError(
        where=str(path),
        key=name,
        problem=f"cannot be read as safetensors ({error})",
        fix="record the step again, or leave the file out",
    )


def _sniff(glimpse: Glimpse) -> bool:
    return header(glimpse.head).keys() >= REQUIRED


def header(head: bytes) -> dict[str, Any]:
    """Return the JSON header, empty where there is none or it is longer than the glimpse."""
    size = int.from_bytes(head[:_LENGTH_BYTES], "little")
    text = head[_LENGTH_BYTES : _LENGTH_BYTES + size]
    if not text.startswith(b"{") or len(text) < size:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


READER = Reader(FORMAT, ArtifactKind.TOKENS, _sniff, read)
