"""What a replay feeds in: the plan that every process of a run reads from one file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from align.core.errors import RunError
from dumps.store.atomic import write_atomic

VARIABLE = "ALIGN_REPLAY"
"""Environment variable that holds the path of the plan; without it nothing is replayed."""

FOLDER = ".align-replay"
"""Folder of the candidate's run folder that holds what is replayed and how it went."""

FILE_NAME = "plan.json"
SCHEMA_VERSION = 1


class Source(str, Enum):
    """Whose value is trained on."""

    RECORDED = "recorded"
    RECOMPUTED = "recomputed"  # by the candidate, as it does without a replay


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One replay.

    Args:
        run: the candidate's run folder.
        log_probs: the rollout engine's; recomputed ones are left to the trainer, which then has
            its own old_log_probs alone.
        rewards: of whole responses.
        allows_missing: generate rows that are not recorded.
        sets_order: whether the candidate's row order is replaced.
    """

    run: Path
    log_probs: Source = Source.RECORDED
    rewards: Source = Source.RECOMPUTED
    allows_missing: bool = False
    sets_order: bool = False

    @property
    def folder(self) -> Path:
        """Everything of the replay."""
        return self.run / FOLDER

    @property
    def rows(self) -> Path:
        """Recorded responses in the standard store's layout, a file a step."""
        return self.folder / "rows"

    @property
    def order(self) -> Path:
        """One row a prompt in the order to be set, in the same layout."""
        return self.folder / "order"


def step_file(folder: Path, step: int) -> Path:
    """Return where a step's rows are."""
    return folder / f"step={step:06d}.parquet"


def write_plan(plan: ReplayPlan) -> Path:
    """Write the plan and return the file."""
    path = plan.folder / FILE_NAME
    content = {"schema_version": SCHEMA_VERSION, **asdict(plan), "run": str(plan.run)}
    write_atomic(path, json.dumps(content, indent=2) + "\n")
    return path


def read_plan(path: Path) -> ReplayPlan:
    """Read a plan.

    Raises:
        RunError: The file cannot be read or is no plan of this version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {content['schema_version']}")
        return ReplayPlan(
            run=Path(content["run"]),
            log_probs=Source(content["log_probs"]),
            rewards=Source(content["rewards"]),
            allows_missing=bool(content["allows_missing"]),
            sets_order=bool(content["sets_order"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            where=str(path),
            problem=f"is no replay plan of version {SCHEMA_VERSION} ({error})",
            fix="start the run with `align replay`",
        ) from error


def plan_of_environment() -> ReplayPlan | None:
    """Return the plan that the environment names, None where it names none.

    Raises:
        RunError: It names a file that is no plan.
    """
    path = os.environ.get(VARIABLE)
    return read_plan(Path(path)) if path else None
