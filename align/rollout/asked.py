"""What the rollout engine was asked, against the prompt its response is filed and trained under.

An invariant within one run: a response answers the prompt that the engine was given. Known where a
dump has the engine's own ids (``prompt_token_ids``) beside the row's ``prompt_ids``, or where it
has the engine's ids and the trainer's input holds the same response under another prompt.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from align.core.finding import Side
from align.core.rollout import RolloutBatch
from align.core.run import ArtifactKind
from align.rollout.token_ids import Ids, ids_of
from align.rollout.token_rows import TokenRows, token_rows
from dumps.store.run_data import RunData

_ASKED = "prompt_token_ids"
_FILED = "prompt_ids"


class Mismatch(str, Enum):
    """How the prompt asked and the prompt filed differ; the value ends the finding's id."""

    PERMUTED = "responses_permuted"  # asked is the prompt of other rows of the step
    SPECIAL_TOKENS = "prompt_special_tokens"  # asked lacks special tokens of the filed
    OTHER = "engine_prompt"  # asked is neither


@dataclass(frozen=True, slots=True)
class Asked:
    """One response: the ids that were asked, and those it is filed or trained under."""

    step: int
    asked: Ids
    filed: Ids
    place: tuple[str, int]  # dump file and 1-based line


@dataclass(frozen=True, slots=True)
class Mismatches:
    """What one run's recordings say.

    Args:
        num_rows: rows of which both prompts are known.
        rows: those whose prompts differ, in step order.
        lost: the special tokens that were lost, id and text.
    """

    side: Side
    num_rows: int
    rows: tuple[tuple[Mismatch, Asked], ...]
    lost: Mapping[int, str]

    def of(self, kind: Mismatch) -> tuple[Asked, ...]:
        """Return the rows of one kind."""
        return tuple(row for found, row in self.rows if found is kind)


def mismatches(side: Side, data: RunData) -> Mismatches:
    """Compare both prompts of every row of a run."""
    rows = asked_rows(data)
    special = special_tokens(data) if any(row.asked != row.filed for row in rows) else {}
    filed: dict[int, set[Ids]] = defaultdict(set)
    for row in rows:
        filed[row.step].add(row.filed)
    found = [(_kind(row, filed[row.step], special), row) for row in rows if row.asked != row.filed]
    found.sort(key=lambda pair: pair[1].step)
    lost = {
        token: special[token]
        for kind, row in found
        if kind is Mismatch.SPECIAL_TOKENS
        for token in row.filed
        if token in special and token not in row.asked
    }
    return Mismatches(side, len(rows), tuple(found), lost)


def _kind(row: Asked, filed: set[Ids], special: Mapping[int, str]) -> Mismatch:
    if row.asked in filed:
        return Mismatch.PERMUTED
    if sum(i in special for i in row.asked) < sum(i in special for i in row.filed):
        return Mismatch.SPECIAL_TOKENS
    return Mismatch.OTHER


def asked_rows(data: RunData) -> list[Asked]:
    """Return the rows of which both prompts are known."""
    if any(_ASKED in batch.extras for batch in _first_batch(data)):
        return [row for batch in data.rollout_batches() for row in _of_batch(batch)]
    return list(_of_trainer(token_rows(data)))


def _first_batch(data: RunData) -> Iterator[RolloutBatch]:
    batch = next(iter(data.rollout_batches()), None)
    if batch is not None:
        yield batch


def _of_batch(batch: RolloutBatch) -> Iterator[Asked]:
    asked, filed = batch.extras.get(_ASKED), batch.extras.get(_FILED)
    if asked is None or filed is None or batch.steps is None:
        return
    for i, (engine, trainer) in enumerate(zip(asked, filed, strict=True)):
        both = ids_of(engine), ids_of(trainer)
        if both[0] and both[1] and batch.steps[i] >= 0:
            place = batch.source, int(batch.lines[i])
            yield Asked(int(batch.steps[i]), both[0], both[1], place)


def _of_trainer(rows: TokenRows) -> Iterator[Asked]:
    """Find each engine row in the trainer's input by a response that occurs once on both sides."""
    for step in rows.trainer:
        trained: dict[Ids, list[int]] = defaultdict(list)
        for number in range(len(step.input_ids)):
            trained[step.response(number)].append(number)
        engine = rows.engine.get(step.step, ())
        made: dict[Ids, int] = defaultdict(int)
        for row in engine:
            made[row.response] += 1
        for row in engine:
            numbers = trained.get(row.response, [])
            if len(numbers) == 1 and made[row.response] == 1 and row.prompt:
                yield Asked(step.step, row.prompt, step.prompt(numbers[0]), row.place)


def special_tokens(data: RunData) -> dict[int, str]:
    """Return the special tokens that the run's own tokenizer files state, by id."""
    found: dict[int, str] = {}
    for artifact in data.run.of_kind(ArtifactKind.TOKENIZER):
        if artifact.path.name not in ("tokenizer.json", "tokenizer_config.json"):
            continue
        try:
            content = json.loads(artifact.path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            found |= _listed(content)
    return found


def _listed(content: Mapping[str, object]) -> dict[int, str]:
    """Read the ``added_tokens`` of tokenizer.json, the decoder of tokenizer_config.json."""
    added, decoder = content.get("added_tokens"), content.get("added_tokens_decoder")
    entries: list[tuple[object, object]] = []
    if isinstance(added, list):
        entries += [(entry.get("id"), entry) for entry in added if isinstance(entry, dict)]
    if isinstance(decoder, dict):
        entries += [(int(key), entry) for key, entry in decoder.items() if str(key).isdecimal()]
    return {
        number: str(entry.get("content"))
        for number, entry in entries
        if isinstance(number, int) and isinstance(entry, dict) and entry.get("special") is True
    }
