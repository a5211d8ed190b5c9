"""Rollout dumps of MindSpeed-RL: JSON lines with prompt, response and label.

MindSpeed-RL itself writes none; users add one to ``rule_verifier.py``, which appends a line a
response for the whole run, with one score column for each verifier. A similar dump with task,
step and reward is made on the GPU side. Which of the two a file is, its first row tells:

- The score is ``reward`` or ``score``, else the only verifier column. Several verifiers are added
  with weights that stand in the configuration, not in the dump: the score is then absent and the
  columns stay extras.
- ``step`` as an integer is the training step; as a float it is the verifier of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from align.core.rollout import RolloutBatch
from align.core.run import ArtifactKind
from dumps.readers.json_lines import first_object
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.rollout_rows import Spelling, read_batches

FORMAT = "mindspeed_rl_rollout"
_VERIFIERS = frozenset(
    {
        "acc",
        "acc_for_dapo",
        "acc_for_ppo",
        "base_acc",
        "format",
        "math_17k_acc",
        "math_verify_reward",
        "retool_reward",
        "step",
        "strict_format",
    }
)
_NOT_VERIFIERS = frozenset(
    {"id", "idx", "index", "iteration", "length", "rank", "step", "task", "uid"}
)


def read(path: Path, progress: Progress) -> Iterator[RolloutBatch]:
    """Stream a MindSpeed-RL dump.

    Raises:
        DumpError: No line of the file is a row.
    """
    row = first_object(Glimpse(path, path.stat().st_size)) or {}
    return read_batches(path, FORMAT, spelling_of(row), progress)


def spelling_of(row: Mapping[str, Any]) -> Spelling:
    """Tell which columns of a dump are what, by its first row."""
    step = "step" if type(row.get("step")) is int else None
    verifiers = _verifiers(row)
    score = next((key for key in ("reward", "score") if key in row), None)
    notes: tuple[str, ...] = ()
    if score is None and len(verifiers) == 1:
        score = verifiers[0]
        notes = (f"the score is the only verifier, {score!r}",)
    elif score is None and verifiers:
        notes = (f"no score: the weights of {', '.join(verifiers)} are not in the dump",)
    return Spelling("prompt", "response", score, step, "label", "uid", notes)


def _verifiers(row: Mapping[str, Any]) -> list[str]:
    numeric = [key for key, value in row.items() if isinstance(value, int | float)]
    known = [
        key
        for key in numeric
        if key in _VERIFIERS and not (key == "step" and type(row[key]) is int)
    ]
    return known or [key for key in numeric if key not in _NOT_VERIFIERS]


def _sniff(glimpse: Glimpse) -> bool:
    row = first_object(glimpse)
    if row is None or not isinstance(row.get("prompt"), str):
        return False
    is_scored = "label" in row or "reward" in row or not _VERIFIERS.isdisjoint(row)
    return isinstance(row.get("response"), str) and is_scored


READER = Reader(FORMAT, ArtifactKind.ROLLOUT, _sniff, read)
