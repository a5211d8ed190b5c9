"""Rollout and validation dumps of verl: ``{rollout_data_dir}/{step}.jsonl``, one response a line.

Fields by version (input, output, score and step always): 0.4 reward extras; 0.5 request_id;
0.6 gts; 0.9's V1 trainer uid and no extras. All hold text decoded without special tokens, so
token ids, eos and padding cannot be recovered from them.

A validation dump has the same fields and a ``reward`` that repeats the score. So content decides
first: rows whose ``reward`` equals ``score`` (to float32, which one of the two was stored in) are
validation. Where there is no such field, or it is an extra of its own, the name of the folder
decides: a word "val", "valid" or "validation" in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from align.core.rollout import RolloutBatch
from align.core.run import ArtifactKind
from dumps.readers.json_lines import first_object
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.rollout_rows import Spelling, read_batches

FORMAT = "verl_rollout"
SPELLING = Spelling("input", "output", "score", "step", "gts", "uid")
_FLOAT32_REL = 2.0**-23
_VALIDATION_FOLDER = re.compile(r"(?:^|[^a-z])(?:val|valid|validation)(?:[^a-z]|$)")


def read(path: Path, progress: Progress) -> Iterator[RolloutBatch]:
    """Stream a verl dump.

    Raises:
        DumpError: No line of the file is a row.
    """
    return read_batches(path, FORMAT, SPELLING, progress)


def _is_validation(row: dict[str, Any], folder: str) -> bool:
    reward, score = row.get("reward"), row["score"]
    if (
        isinstance(reward, int | float)
        and isinstance(score, int | float)
        and math.isclose(reward, score, rel_tol=_FLOAT32_REL)
    ):
        return True
    return bool(_VALIDATION_FOLDER.search(folder.lower()))


def _kind(glimpse: Glimpse) -> ArtifactKind | None:
    row = first_object(glimpse)
    if row is None or "score" not in row:
        return None
    if not all(isinstance(row.get(key), str) for key in ("input", "output")):
        return None  # a vocabulary has all three words as keys
    validation = _is_validation(row, glimpse.path.parent.name)
    return ArtifactKind.VALIDATION if validation else ArtifactKind.ROLLOUT


def _sniff_rollout(glimpse: Glimpse) -> bool:
    return _kind(glimpse) is ArtifactKind.ROLLOUT


def _sniff_validation(glimpse: Glimpse) -> bool:
    return _kind(glimpse) is ArtifactKind.VALIDATION


READERS = (
    Reader(FORMAT, ArtifactKind.ROLLOUT, _sniff_rollout, read),
    Reader(FORMAT, ArtifactKind.VALIDATION, _sniff_validation, read),
)
