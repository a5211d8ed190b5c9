"""results.json of EleutherAI's lm-evaluation-harness: keys ``metric,filter`` and their errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from align.core.errors import DumpError
from align.core.evaluation import EvalResults, Score
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader, no_progress

FORMAT = "lm_eval_results"

_SIGN = re.compile(rb'"results"\s*:\s*\{\s*"[^"]+"\s*:\s*\{[^{}]*"[\w@.]+,[\w-]+"\s*:')
_NOT_SHARES = ("perplexity", "bits_per_byte", "mcc", "bleu", "chrf", "ter", "ppl")
_SETTINGS = ("system_instruction", "chat_template_sha", "fewshot_as_multiturn", "max_length")


def _sniff(glimpse: Glimpse) -> bool:
    return _SIGN.search(glimpse.head) is not None


def read_lm_eval(path: Path, progress: Progress = no_progress) -> EvalResults:
    """Read every metric of every task.

    Raises:
        DumpError: The file is not JSON, or holds no results.
    """
    document = load_json(path, progress)
    results = document.get("results")
    if not isinstance(results, dict) or not results:
        raise DumpError(where=str(path), problem="holds no results", fix="give lm-eval's JSON")
    parents = _parents(document)
    scores: list[Score] = []
    num_unread = 0
    for task, metrics in results.items():
        found = list(_scores(str(task), metrics, document, parents)) if metrics else []
        num_unread += not found
        scores += found
    settings = {
        name: str(document[name]) for name in _SETTINGS if document.get(name) not in (None, "")
    }
    return EvalResults(str(path), FORMAT, tuple(scores), settings, num_unread)


def load_json(path: Path, progress: Progress) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        DumpError: The file is not a JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        document = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        raise DumpError(
            where=where, problem="is not valid JSON", fix="give the file as the tool wrote it"
        ) from error
    progress(len(text))
    if not isinstance(document, dict):
        raise DumpError(where=str(path), problem="is no JSON object", fix="give the result file")
    return document


def _parents(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the group of each task; a group of groups does not count as one."""
    groups = document.get("group_subtasks") or {}
    return {
        str(task): str(group)
        for group, tasks in groups.items()
        for task in tasks
        if task != group and not groups.get(task)
    }


def _scores(
    task: str, metrics: Mapping[str, Any], document: Mapping[str, Any], parents: Mapping[str, str]
) -> Iterator[Score]:
    better = document.get("higher_is_better", {}).get(task) or {}
    counts = document.get("n-samples", {}).get(task) or {}
    shots = document.get("n-shot", {}).get(task)
    settings = {"num_fewshot": str(shots)} if shots is not None else {}
    for key, value in metrics.items():
        name, comma, chosen = str(key).partition(",")
        if not comma or name.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = metrics.get(f"{name}_stderr,{chosen}")
        yield Score(
            task=task.lower(),
            metric=name if chosen == "none" else f"{name},{chosen}",
            value=float(value),
            is_share=name not in _NOT_SHARES and 0 <= float(value) <= 1,
            higher_is_better=better.get(name) is not False and name not in _NOT_SHARES[:2],
            stderr=float(error) if isinstance(error, int | float) else None,
            num_samples=counts.get("effective"),
            group=parents.get(task),
            settings=settings,
        )


READER = Reader(FORMAT, ArtifactKind.EVALS, _sniff, read_lm_eval)
