"""What a capture records: the plan that every process of a run reads from one file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from align.core.errors import RunError
from dumps.store.atomic import write_atomic

VARIABLE = "ALIGN_CAPTURE"
"""Environment variable that holds the path of the plan; without it nothing is hooked."""

FILE_NAME = "capture.json"
SCHEMA_VERSION = 1


class What(str, Enum):
    """Kinds of things a capture records."""

    ROLLOUTS = "rollouts"
    INPUTS = "inputs"
    LOG_PROBS = "log_probs"
    GRAD_NORMS = "grad_norms"
    WEIGHTS = "weights"
    CONFIG = "config"
    METRICS = "metrics"
    RNG = "rng"
    MODULES = "modules"
    SKETCHES = "sketches"


BY_DEFAULT = tuple(w for w in What if w not in (What.WEIGHTS, What.MODULES, What.SKETCHES))
"""What is recorded when nothing is asked for: all that costs next to nothing."""

# Where the warm-up starts at 0, step 2 is the first with an update; step 3's engine tells weights
# that are one step old from those of the start.
SKETCHED_STEPS = 3


class Backend(str, Enum):
    """What looks at modules."""

    ALIGN = "align"
    MSPROBE = "msprobe"


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """One capture.

    Args:
        run: folder to write into.
        what: kinds to record.
        steps: inclusive ranges of steps, numbered from 1; empty for all.
        ranks: whose tensors are recorded; empty for all.
        modules: shell pattern of module names, for `What.MODULES` and `What.SKETCHES`.
        stops_on_error: whether a broken invariant ends the run.
        backend: what looks at modules.
        tensors: shell patterns of modules whose tensors are kept whole besides their sketches.
        perturbs: embeddings are moved by one rounding unit, so that the run shows what noise does.
    """

    run: Path
    what: tuple[What, ...] = BY_DEFAULT
    steps: tuple[tuple[int, int], ...] = ()
    ranks: tuple[int, ...] = ()
    modules: str | None = None
    stops_on_error: bool = False
    backend: Backend = Backend.ALIGN
    tensors: tuple[str, ...] = ()
    perturbs: bool = False

    def takes(self, what: What) -> bool:
        """Tell whether a kind is recorded."""
        return what in self.what

    def takes_step(self, step: int) -> bool:
        """Tell whether a step is recorded."""
        return not self.steps or any(first <= step <= last for first, last in self.steps)

    def sketches_step(self, step: int) -> bool:
        """Tell whether a step's activations and gradients are sketched; the first unless asked."""
        first = bool(self.steps) or step <= SKETCHED_STEPS
        return self.takes(What.SKETCHES) and first and self.takes_step(step)

    def sketches_sync(self, step: int) -> bool:
        """Tell whether the weights that a step begins with are sketched."""
        return self.sketches_step(step) or (self.takes(What.WEIGHTS) and self.takes_step(step))

    def takes_rank(self, rank: int) -> bool:
        """Tell whether a rank is recorded."""
        return not self.ranks or rank in self.ranks


def parse_kinds(text: str) -> tuple[What, ...]:
    """Read "rollouts,config".

    Raises:
        RunError: One is no kind.
    """
    try:
        return tuple(What(kind.strip()) for kind in text.split(","))
    except ValueError as error:
        kinds = ",".join(kind.value for kind in What)
        raise RunError(where="--what", problem=str(error), fix=f"choose from {kinds}") from error


def parse_steps(text: str) -> tuple[tuple[int, int], ...]:
    """Read "1-3,10" as inclusive ranges.

    Raises:
        RunError: A part is neither a number nor two numbers with a dash between, in order.
    """
    ranges = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, dash, last = part.partition("-")
        low, high = first, last if dash else first
        if not (low.isdigit() and high.isdigit() and 1 <= int(low) <= int(high)):
            raise RunError(
                where="--steps", problem=f"{part!r} is no step or range", fix="write 1-3,10"
            )
        ranges.append((int(low), int(high)))
    return tuple(ranges)


def write_plan(plan: CapturePlan) -> Path:
    """Write the plan into its run folder and return the file."""
    path = plan.run / FILE_NAME
    content = {"schema_version": SCHEMA_VERSION, **asdict(plan), "run": str(plan.run)}
    write_atomic(path, json.dumps(content, indent=2) + "\n")
    return path


def read_plan(path: Path) -> CapturePlan:
    """Read a plan.

    A relative ``run`` is taken from the plan's folder, so that a plan written by hand can say ".".

    Raises:
        RunError: The file cannot be read or is no plan of this version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {content['schema_version']}")
        return CapturePlan(
            run=path.parent / content.get("run", "."),
            what=tuple(map(What, content.get("what", BY_DEFAULT))),
            steps=tuple((int(first), int(last)) for first, last in content.get("steps", ())),
            ranks=tuple(map(int, content.get("ranks", ()))),
            modules=content.get("modules"),
            stops_on_error=bool(content.get("stops_on_error", False)),
            backend=Backend(content.get("backend", Backend.ALIGN)),
            tensors=tuple(map(str, content.get("tensors", ()))),
            perturbs=bool(content.get("perturbs", False)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            where=str(path),
            problem=f"is no capture plan of version {SCHEMA_VERSION} ({error})",
            fix="write it with `align capture --plan-only -o RUN`",
        ) from error


def plan_of_environment() -> CapturePlan | None:
    """Return the plan that the environment names, None where it names none.

    Raises:
        RunError: It names a file that is no plan.
    """
    path = os.environ.get(VARIABLE)
    return read_plan(Path(path)) if path else None
