"""verl's saved rollouts: ``tq_batch.pt`` (V1, ``skip.rollout_tq``) and ``gen_batch.dp`` (V0).

Both hold token ids and no text. Texts are decoded only where a tokenizer is given, without special
tokens as verl's own dump does; they are None otherwise.

tq_batch.pt is a torch archive of ``{tensordict, tags, keys, global_steps}`` with ragged tensors;
gen_batch.dp is a pickled DataProto with tensors padded as the trainer takes them, and its step is
in ``meta.json`` beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from align.core.errors import DumpError
from align.core.rollout_record import RolloutRecord
from dumps.readers.inert_pickle import Array, Inert, Ragged, plain, read_pickle, unpickle

TQ_BATCH, GEN_BATCH = "tq_batch.pt", "gen_batch.dp"
Decode = Callable[[Sequence[int]], str]
_TAKEN = frozenset(
    {
        "prompts",
        "responses",
        "rollout_log_probs",
        "rm_scores",
        "uid",
        "index",
        "session_id",
        "reward_model",
        "global_steps",
    }
)
# Follows from what is taken, or says nothing of a response; prompt is raw_prompt.
_FOLLOWS = frozenset(
    {
        "input_ids",
        "attention_mask",
        "position_ids",
        "loss_mask",
        "response_mask",
        "dummy_tensor",
        "prompt",
    }
)


@dataclass(frozen=True, slots=True)
class SavedRollout:
    """One saved step: its rows, and the names of fields that were left out."""

    records: tuple[RolloutRecord, ...]
    left_out: tuple[str, ...]


def read_saved(path: Path, decode: Decode | None = None) -> SavedRollout:
    """Read either file by its content.

    Raises:
        DumpError: It is neither, or damaged, or its tensors do not fit each other.
    """
    value = read_pickle(path)
    try:
        if isinstance(value, dict) and isinstance(value.get("tensordict"), dict):
            return _tq_batch(value, decode)
        if isinstance(value, Inert) and value.path.endswith(".DataProto"):
            return _gen_batch(path, value.state, decode)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DumpError(
            where=str(path),
            key=error.args[0] if isinstance(error, KeyError) else None,
            problem=f"is no rollout that verl saved ({type(error).__name__}: {error})",
            fix="give a tq_batch.pt or gen_batch.dp of verl's skip.rollout_tq or skip.rollout",
        ) from error
    raise DumpError(
        where=str(path),
        problem="is a pickle of something else than a rollout that verl saved",
        fix="give a tq_batch.pt or gen_batch.dp of verl's skip.rollout_tq or skip.rollout",
    )


def _tq_batch(payload: Mapping[str, Any], decode: Decode | None) -> SavedRollout:
    batch = payload["tensordict"]
    prompts, responses = batch["prompts"], batch["responses"]
    num_rows = len(prompts.rows)
    columns = {name: _column(batch[name], num_rows) for name in batch}
    extras = {k: v for k, v in columns.items() if k not in _TAKEN | _FOLLOWS and v is not None}
    log_probs, scores = columns.get("rollout_log_probs"), columns.get("rm_scores")
    masks = columns.get("response_mask")
    records = []
    for i in range(num_rows):
        more = {name: column[i] for name, column in extras.items() if _is_json(column[i])}
        if masks is not None and 0 in masks[i]:
            more["response_mask"] = masks[i]
        reward = _at(columns, "reward_model", i)
        truth = reward.get("ground_truth") if isinstance(reward, dict) else None
        records.append(
            _record(
                prompts.rows[i],
                responses.rows[i],
                None if log_probs is None else log_probs[i],
                None if scores is None else float(sum(scores[i])),
                payload.get("global_steps"),
                decode,
                dataset_index=_at(columns, "index", i),
                sample_index=_at(columns, "session_id", i),
                ground_truth=None if truth is None else str(truth),
                uid=_at(columns, "uid", i),
                extras=more,
            )
        )
    return SavedRollout(tuple(records), _left_out(batch, extras))


def _gen_batch(path: Path, state: Any, decode: Decode | None) -> SavedRollout:
    tensors, more = state[0], state[1]
    if isinstance(tensors, bytes):
        tensors = unpickle(tensors, str(path))
    prompts, responses = tensors["prompts"], tensors["responses"]
    attended, width = tensors["attention_mask"] != 0, prompts.shape[1]
    masks, log_probs = tensors.get("response_mask"), tensors.get("rollout_log_probs")
    scores, step = tensors.get("rm_scores"), step_beside(path)
    columns = {name: _column(plain(value), len(prompts)) for name, value in more.items()}
    extras = {k: v for k, v in columns.items() if k not in _TAKEN | _FOLLOWS and v is not None}
    records = []
    for i in range(len(prompts)):
        seen = attended[i, width:]
        fields = {name: column[i] for name, column in extras.items() if _is_json(column[i])}
        if scores is not None and np.float32(fields.get("score", np.nan)) == scores[i].sum():
            del fields["score"]  # the same in float64: rm_scores are what was trained on
        if masks is not None and not masks[i][seen].all():
            fields["response_mask"] = masks[i][seen].tolist()
        records.append(
            _record(
                prompts[i][attended[i, :width]],
                responses[i][seen],
                None if log_probs is None else log_probs[i][seen].tolist(),
                None if scores is None else float(scores[i].sum(dtype=np.float64)),
                step,
                decode,
                uid=_at(columns, "uid", i),
                dataset_index=_at(columns, "index", i),
                extras=fields,
            )
        )
    return SavedRollout(tuple(records), _left_out({**tensors, **more}, extras))


def _record(
    prompt: Array,
    response: Array,
    log_probs: Sequence[float] | None,
    score: float | None,
    step: object,
    decode: Decode | None,
    **known: Any,
) -> RolloutRecord:
    prompt_ids, response_ids = tuple(prompt.tolist()), tuple(response.tolist())
    if log_probs is not None and len(log_probs) != len(response_ids):
        raise ValueError(f"{len(log_probs)} log_probs for {len(response_ids)} response tokens")
    return RolloutRecord(
        prompt=None if decode is None else decode(prompt_ids),
        response=None if decode is None else decode(response_ids),
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        log_probs=None if log_probs is None else tuple(log_probs),
        score=score,
        step=step if type(step) is int else None,
        **known,
    )


def _column(value: Any, num_rows: int) -> list[Any] | None:
    """Return one field's values; None for what has not one of each row."""
    if isinstance(value, Ragged):
        value = [row.tolist() for row in value.rows]
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    return value if isinstance(value, list) and len(value) == num_rows else None


def _at(columns: Mapping[str, list[Any] | None], name: str, row: int) -> Any:
    column = columns.get(name)
    return None if column is None else column[row]


def _is_json(value: Any) -> bool:
    if value is None or value in ({}, []):
        return False
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _left_out(names: Mapping[str, Any], extras: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(set(names) - _TAKEN - _FOLLOWS - extras.keys()))


def step_beside(path: Path) -> int | None:
    """Return the step that ``meta.json`` or else the folder's name gives."""
    try:
        meta = json.loads((path.parent / "meta.json").read_text("utf-8"))
    except (OSError, ValueError):
        meta = None
    step = meta.get("global_steps") if isinstance(meta, dict) else None
    if type(step) is int:
        return step
    return int(path.parent.name) if path.parent.name.isdecimal() else None
