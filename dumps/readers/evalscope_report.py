"""A report of evalscope: one data set, its metrics, and their subsets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from align.core.errors import DumpError
from align.core.evaluation import EvalResults, Score
from align.core.run import ArtifactKind
from dumps.readers.lm_eval_results import load_json
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

FORMAT = "evalscope_report"

_SIGN = re.compile(rb'"dataset_name"\s*:[\s\S]{1,4000}"metrics"\s*:\s*\[')


def _sniff(glimpse: Glimpse) -> bool:
    return _SIGN.search(glimpse.head) is not None


def read_evalscope(path: Path, progress: Progress = no_progress) -> EvalResults:
    """Read the data set's metrics and their subsets.

    Raises:
        DumpError: The file is not evalscope's report.
    """
    document = load_json(path, progress)
    scores = [s for metric in document.get("metrics") or [] for s in _scores(document, metric)]
    if not scores:
        raise DumpError(where=str(path), problem="holds no score", fix="give evalscope's report")
    return EvalResults(str(path), FORMAT, tuple(scores))


def _scores(document: Mapping[str, Any], metric: Mapping[str, Any]) -> Iterator[Score]:
    task = str(document["dataset_name"]).lower()
    name = str(metric.get("name", "score")).lower()
    whole = _score(task, name, metric)
    if whole is not None:
        yield whole
    subsets = [
        s for category in metric.get("categories") or [] for s in category.get("subsets", ())
    ]
    for subset in subsets if len(subsets) > 1 else ():
        part = _score(f"{task}:{str(subset.get('name', '?')).lower()}", name, subset, task)
        if part is not None:
            yield part


def _score(
    task: str, metric: str, entry: Mapping[str, Any], group: str | None = None
) -> Score | None:
    value, count = entry.get("score"), entry.get("num")
    if not isinstance(value, int | float):
        return None
    share = 0 <= float(value) <= 1
    samples = int(count) if isinstance(count, int | float) else None
    return Score(task, metric, float(value), share, num_samples=samples, group=group)


READER = Reader(FORMAT, ArtifactKind.EVALS, _sniff, read_evalscope)
