"""samples_TASK_TIME.jsonl of lm-evaluation-harness (``--log_samples``): one row a question."""

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

FORMAT = "lm_eval_samples"

_SIGN = re.compile(rb'\A\s*\{"doc_id"\s*:\s*\d+[\s\S]*?"filtered_resps"\s*:')
_NAME = re.compile(r"samples_(?P<task>.+?)_\d{4}-\d\d-\d\dT[\d.:-]+\.jsonl$")


def _sniff(glimpse: Glimpse) -> bool:
    return glimpse.head.lstrip()[:1] == b"{" and _SIGN.match(glimpse.head) is not None


def read_lm_eval_samples(path: Path, progress: Progress = no_progress) -> EvalResults:
    """Read the metrics of every question.

    A question that several filters score has a row of each. The task is in the file's name.

    Raises:
        DumpError: No line holds a scored question.
    """
    task = _task(path)
    return results_of(
        path,
        FORMAT,
        (
            [] if isinstance(row, Unreadable) else list(_answers(row, task))
            for _, row, _ in iter_objects(path, progress)
        ),
        problem="holds no scored question",
        fix="run lm-eval with --log_samples",
    )


def _task(path: Path) -> str:
    match = _NAME.search(path.name)
    return (match["task"] if match else path.stem.removeprefix("samples_")).lower()


def _answers(row: dict[str, Any], task: str) -> Iterator[Answered]:
    chosen = str(row.get("filter", "none"))
    for name in row.get("metrics") or ():
        value = as_number(row.get(name))
        if value is not None and "doc_id" in row:
            metric = str(name) if chosen == "none" else f"{name},{chosen}"
            yield Answered(task, metric, str(row["doc_id"]), value)


READER = Reader(FORMAT, ArtifactKind.EVALS, _sniff, read_lm_eval_samples, sole_role=True)
