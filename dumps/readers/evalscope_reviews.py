"""reviews/MODEL/DATASET_SUBSET.jsonl of evalscope 1.x: one row an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from align.core.evaluation import EvalResults
from align.core.run import ArtifactKind
from dumps.readers.json_lines import Unreadable, iter_objects
from dumps.readers.question_scores import Answered, as_number, results_of
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

FORMAT = "evalscope_reviews"

_SIGN = re.compile(rb'"sample_score"\s*:\s*\{\s*"score"\s*:\s*\{\s*"value"\s*:')


def _sniff(glimpse: Glimpse) -> bool:
    return glimpse.head.lstrip()[:9].startswith(b'{"index"') and (
        _SIGN.search(glimpse.head) is not None or glimpse.search(_SIGN) is not None
    )


def read_evalscope_reviews(path: Path, progress: Progress = no_progress) -> EvalResults:
    """Read every answer's scores; answers of one ``group_id`` are repeats of one question.

    Raises:
        DumpError: No line holds a scored answer.
    """
    task = path.stem.lower()
    return results_of(
        path,
        FORMAT,
        (
            [] if isinstance(row, Unreadable) else list(_answers(row, task))
            for _, row, _ in iter_objects(path, progress)
        ),
        problem="holds no scored answer",
        fix="give evalscope's reviews",
    )


def _answers(row: dict[str, Any], task: str) -> Iterator[Answered]:
    sample = row.get("sample_score")
    score = sample.get("score") if isinstance(sample, dict) else None
    values = score.get("value") if isinstance(score, dict) else None
    if not isinstance(values, dict):
        return
    stated = sample.get("group_id") if isinstance(sample, dict) else None
    question = row.get("index") if stated is None else stated
    for name, raw in values.items():
        value = as_number(raw)
        if value is not None and question is not None:
            yield Answered(task, str(name).lower(), str(question), value)


READER = Reader(FORMAT, ArtifactKind.EVALS, _sniff, read_evalscope_reviews, sole_role=True)
