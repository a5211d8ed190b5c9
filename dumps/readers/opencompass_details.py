"""results/MODEL/DATASET.json of OpenCompass and AISBench, with ``details`` of each question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from align.core.evaluation import EvalResults
from align.core.run import ArtifactKind
from dumps.readers.lm_eval_results import load_json
from dumps.readers.question_scores import Answered, as_number, results_of
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

FORMAT = "opencompass_details"

_SIGN = re.compile(rb'"details"\s*:\s*[\[{]')
_VERDICT = re.compile(rb'"(correct|is_correct|cascade_correct)"\s*:')
_KEYS = ("correct", "is_correct", "cascade_correct")
METRIC = "accuracy"


def _sniff(glimpse: Glimpse) -> bool:
    if glimpse.head.lstrip()[:1] != b"{" or glimpse.search(_SIGN) is None:
        return False
    return glimpse.search(_VERDICT) is not None


def read_opencompass_details(path: Path, progress: Progress = no_progress) -> EvalResults:
    """Read whether each answer is correct: a list of k verdicts where a question was asked k times.

    ``example_abbr`` (``algebra_17``) names the question's subdivision. The data set is the file's
    name.

    Raises:
        DumpError: The file is no JSON, or no detail says whether it is correct.
    """
    document = load_json(path, progress)
    raw = document.get("details")
    details = dict(enumerate(raw)) if isinstance(raw, list) else raw
    known = details if isinstance(details, dict) else {}
    task = path.stem.lower()
    return results_of(
        path,
        FORMAT,
        (list(_answers(task, str(number), detail)) for number, detail in known.items()),
        problem="says of no answer whether it is correct",
        fix="evaluate with dump_details (OpenCompass) or --dump-eval-details (AISBench)",
    )


def _answers(task: str, number: str, detail: Any) -> Iterator[Answered]:
    if not isinstance(detail, Mapping):
        return
    verdicts = next((detail[key] for key in _KEYS if detail.get(key) is not None), None)
    name = detail.get("example_abbr")
    question = number if name is None else str(name)
    subdivision, underscore, _ = question.rpartition("_")
    part = subdivision.lower() if name is not None and underscore else None
    for verdict in verdicts if isinstance(verdicts, list) else [verdicts]:
        value = as_number(verdict)
        if value is not None:
            yield Answered(task, METRIC, question, value, part)


READER = Reader(FORMAT, ArtifactKind.EVALS, _sniff, read_opencompass_details)
