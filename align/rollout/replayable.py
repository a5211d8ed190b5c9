"""Recorded rollouts as a replay needs them: every response with token ids, in a certain order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from align.core.errors import DumpError, RunError
from align.core.rollout_record import RolloutRecord
from align.core.run import ArtifactKind
from align.rollout.rebuild import Mark, Rules, TextRow, rebuild
from align.rollout.token_tokenizer import load_tokenizer
from dumps.inject.order_data import OrderData
from dumps.inject.tokenizer_facts import TokenizerFacts
from dumps.store.discover import discover
from dumps.store.rollout_sources import Reading, records, sources

MARK, REASON = "replay_mark", "replay_reason"
_V1_UID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})_(\d+)_\d+")


@dataclass(frozen=True, slots=True)
class Replayable:
    """What was recorded.

    Args:
        rows: with response ids each, marked exact, rebuilt or ambiguous in their extras.
        tokenizer: that the ids belong to; None where its files are not known.
        marks: how many rows are how sure.
    """

    rows: tuple[RolloutRecord, ...]
    tokenizer: TokenizerFacts | None
    marks: dict[str, int]


def read_replayable(source: Path, tokenizer: Path | None, limit: int | None) -> Replayable:
    """Read rollouts of any format and rebuild the ids of those recorded as text.

    Args:
        tokenizer: folder of the model that gave them; the recorded run's own by default.
        limit: length in tokens at which responses were cut, which text does not say.

    Raises:
        DumpError: There are no rollouts, a row cannot be read, or ids have to be rebuilt without a
            tokenizer.
        RunError: The path does not exist.
    """
    reading = Reading()
    rows = list(records(sources(source), None, reading))
    if reading.problems:
        raise DumpError(
            where=str(source),
            problem=f"cannot be read whole: {reading.problems[0]}",
            fix="replay only what was recorded whole; record it again",
        )
    folder = tokenizer or _own_tokenizer(source)
    loaded = None if folder is None else load_tokenizer(folder)
    facts = None if folder is None else _facts(folder, loaded)
    textual = [i for i, row in enumerate(rows) if row.response_ids is None]
    if textual and (loaded is None or facts is None or facts.eos is None):
        raise DumpError(
            where=str(source),
            key="response_ids",
            problem=f"{len(textual)} of {len(rows)} responses are recorded as text alone",
            fix="give the recording model's tokenizer with --tokenizer, or record token ids with "
            "`align capture`",
        )
    rows = [_numbered(row) for row in rows]
    marked = [_marked(row, Mark.EXACT, "") for row in rows]
    if textual and facts is not None and facts.eos is not None:
        rules = Rules(eos=facts.vocabulary[facts.eos], max_response_length=limit)
        for i, row in zip(
            textual, _rebuilt([rows[i] for i in textual], loaded, rules), strict=True
        ):
            marked[i] = row
    counts = {mark.value: 0 for mark in Mark}
    for row in marked:
        counts[row.extras[MARK]] += 1
    return Replayable(tuple(marked), facts, counts)


@dataclass(frozen=True, slots=True)
class Order:
    """A row order.

    Args:
        rows: a row of the data set each, or a response whose prompt is found by content.
        data: the data set whose rows they are; None where they are found by content.
    """

    rows: list[RolloutRecord]
    data: OrderData | None = None


def read_order(path: Path) -> Order:
    """Read a row order: a run's rollouts, or the file that `align data order --write` makes.

    Raises:
        RunError: The file is of another kind.
        DumpError: There are no rollouts.
    """
    if path.is_file() and path.suffix not in (".parquet", ".pt", ".dp"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if lines and lines[0].get("kind") == "row_order":
            header, *steps = lines
            rows = [
                RolloutRecord(step=line["step"], dataset_index=int(row), uid=f"{line['step']}-{i}")
                for line in steps
                for i, row in enumerate(line["rows"])
            ]
            data = OrderData(
                source=str(header.get("data_set") or "a data set that was not at hand"),
                num_rows=header.get("num_rows"),
                sha=header.get("data_set_hash"),
                brief=header.get("row_hashes") or "",
                hashed=header.get("hashed") or "text",
            )
            return Order(rows, data)
    reading = Reading()
    found = list(records(sources(path), None, reading))
    if reading.problems:
        raise RunError(
            where=str(path), problem=reading.problems[0], fix="give a run with readable rollouts"
        )
    return Order(found)


def _rebuilt(
    rows: Sequence[RolloutRecord], tokenizer: Any, rules: Rules
) -> Iterable[RolloutRecord]:
    texts = [TextRow(None, row.response or "", finish_reason=row.finish_reason) for row in rows]
    for row, made in zip(rows, rebuild(texts, tokenizer, rules).rows, strict=True):
        response = made.response
        ids = replace(row, response_ids=response.ids)
        yield _marked(ids, response.mark, response.reason.en)


def _marked(row: RolloutRecord, mark: Mark, reason: str) -> RolloutRecord:
    return replace(row, extras={**row.extras, MARK: mark.value, REASON: reason})


def _numbered(row: RolloutRecord) -> RolloutRecord:
    """Split the uid of verl's V1 dump, "prompt_session_output", which is one a response."""
    found = _V1_UID.fullmatch(row.uid or "")
    if found is None or row.sample_index is not None:
        return row
    return replace(row, uid=found[1], sample_index=int(found[2]))


def _own_tokenizer(source: Path) -> Path | None:
    """Return the tokenizer folder of a recorded run."""
    if not source.is_dir():
        return None
    found = discover([source]).of_kind(ArtifactKind.TOKENIZER)
    return next((a.path.parent for a in found if a.path.name == "tokenizer.json"), None)


def _facts(folder: Path, tokenizer: Any) -> TokenizerFacts:
    path = (folder if folder.is_dir() else folder.parent) / "tokenizer_config.json"
    eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token") if path.is_file() else None
    content = eos.get("content") if isinstance(eos, dict) else eos
    return TokenizerFacts(dict(tokenizer.get_vocab(True)), content)
