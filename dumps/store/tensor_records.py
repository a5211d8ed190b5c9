"""What a capture keeps of one tensor, and where its files lie in a run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Sketch = npt.NDArray[np.float64]

FORMAT = "align_sketches_1"
FOLDER = "sketches"
ENGINE_FOLDER = "engine_"  # and the rank

CLOSING = ("*.o_proj", "*.down_proj", "*.linear_proj", "*.linear_fc2", "*.dense")
"""Layers that close attention and MLP: row-parallel ones, whose inputs are recorded too."""


class Phase:
    """Names of what is recorded of a module or a parameter."""

    FORWARD = "forward"  # output
    INPUT = "input"  # first input
    GRADIENT = "gradient"  # of the output
    PARAMETER = "parameter"  # in the trainer, when the rollout engine has been given them
    SENT = "sent_parameter"  # the trainer's, in the dtype that the engine is configured with
    ENGINE = "engine_parameter"  # in the rollout engine, at the same time
    PARAMETER_GRADIENT = "parameter_gradient"  # reduced over ranks, before clipping
    UPDATE = "update"  # parameter after an optimizer step less before
    FIRST_MOMENT = "exp_avg"
    SECOND_MOMENT = "exp_avg_sq"


@dataclass(frozen=True, slots=True, eq=False)
class TensorRecord:
    """One address of one step: what all its parts add up to.

    Args:
        update: optimizer step within the training step, from 0.
        order: place in the order of computation.
        shape: of the first part.
        sketch: float64 [16, 16].
        l2, total, minimum, maximum: in float32 over all elements, NaN where one is.
        zeros, bfloat16: how many elements are 0, and bfloat16 holds; of optimizer states alone.
        digest: equal for equal sets of (token or row, feature).
    """

    name: str
    phase: str
    update: int
    order: int
    dtype: str
    shape: tuple[int, ...]
    num_elements: int
    sketch: Sketch
    l2: float
    total: float
    minimum: float
    maximum: float
    zeros: int
    nan: int
    positive_inf: int
    negative_inf: int
    bfloat16: int
    digest: int

    @property
    def mean(self) -> float:
        """Mean over all elements."""
        return self.total / max(1, self.num_elements)

    @property
    def std(self) -> float:
        """Standard deviation over all elements."""
        return math.sqrt(max(0.0, self.l2**2 / max(1, self.num_elements) - self.mean**2))

    @property
    def absmax(self) -> float:
        """Largest magnitude."""
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def is_finite(self) -> bool:
        """Whether it has neither NaN nor infinity."""
        return not (self.nan or self.positive_inf or self.negative_inf)


@dataclass(frozen=True, slots=True, eq=False)
class SketchFile:
    """One file of a capture.

    Args:
        unaligned: modules whose output has no row a token.
        problems: what the capture could not do.
        facts: further numbers of the step.
    """

    source: str
    step: int
    rank: int
    records: tuple[TensorRecord, ...]
    unaligned: tuple[str, ...]
    problems: tuple[str, ...]
    facts: Mapping[str, int]


def sketch_path(folder: Path, step: int, rank: int) -> Path:
    """Return where a run folder keeps the sketches of a step."""
    return folder / FOLDER / f"rank_{rank}" / f"{step}.safetensors"


def sync_path(folder: Path, step: int, rank: int) -> Path:
    """Return where the weights are that a rank of the trainer gives away as a step begins."""
    return folder / FOLDER / f"sync_{rank}" / f"{step}.safetensors"


def engine_path(folder: Path, step: int, rank: int) -> Path:
    """Return where the weights are that a rank of the rollout engine has as a step begins."""
    return folder / FOLDER / f"{ENGINE_FOLDER}{rank}" / f"{step}.safetensors"
