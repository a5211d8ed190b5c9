"""Write what verl's ``skip.rollout_tq`` and ``skip.rollout`` load in place of generating.

Needs tensordict for tq_batch.pt and verl for gen_batch.dp: both are pickles of their classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from align.core.errors import DumpError
from align.core.optional import require
from align.core.rollout_record import RolloutRecord
from dumps.store.atomic import write_atomic

Records = Sequence[RolloutRecord]
_PADDING = 0  # masked in attention_mask, so any id will do


def write_tq_batch(path: Path, step: int, rows: Records) -> Mapping[str, int]:
    """Write one step as V1's trainer saves it; return what it has no place for, and how often.

    Raises:
        DumpError: Rows lack token ids or log_probs that others have.
        MissingPackageError: torch or tensordict is not installed.
    """
    torch = require("torch", extra="torch")
    tensordict = require("tensordict", extra="verl")
    _check_ids(path, step, rows)
    uids, samples = _groups(rows)
    masks = [torch.tensor(_mask(row)) for row in rows]
    lengths = [(len(row.prompt_ids or ()), len(row.response_ids or ())) for row in rows]
    tensors = {
        "prompts": [torch.tensor(row.prompt_ids) for row in rows],
        "responses": [torch.tensor(row.response_ids) for row in rows],
        "input_ids": [torch.tensor([*_ids(row)]) for row in rows],
        "position_ids": [torch.arange(sum(both)) for both in lengths],
        "response_mask": masks,
        "loss_mask": masks,
        "rm_scores": [torch.tensor(_token_scores(row)) for row in rows],
    }
    if rows[0].log_probs is not None:
        tensors["rollout_log_probs"] = [
            torch.tensor(row.log_probs, dtype=torch.float32) for row in rows
        ]
    batch = tensordict.TensorDict(
        {k: torch.nested.as_nested_tensor(v, layout=torch.jagged) for k, v in tensors.items()},
        batch_size=[len(rows)],
    )
    others: dict[str, list[Any]] = {
        "uid": uids,
        "session_id": samples,
        "index": [-1 if row.dataset_index is None else row.dataset_index for row in rows],
        "reward_model": [{"style": "rule", "ground_truth": row.ground_truth} for row in rows],
        "global_steps": [step] * len(rows),
    }
    kept = {name for row in rows for name in row.extras} - {"response_mask"} - others.keys()
    others |= {name: [row.extras.get(name) for row in rows] for name in sorted(kept)}
    for name, values in others.items():
        batch[name] = tensordict.NonTensorStack(*map(tensordict.NonTensorData, values))
    payload = {
        "tensordict": batch,
        "tags": [
            {
                "status": "success",
                "prompt_len": p,
                "response_len": r,
                "seq_len": p + r,
                "global_steps": step,
                "min_global_steps": step - 1,
                "max_global_steps": step - 1,
            }
            for p, r in lengths
        ],
        "keys": [f"{uid}_{sample}_0" for uid, sample in zip(uids, samples, strict=True)],
        "global_steps": step,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(payload, path)
    meta = {"global_steps": step, "num_trajectories": len(rows)}
    write_atomic(path.parent / "meta.json", json.dumps(meta))
    return _lost(rows, ("prompt", "response", "finish_reason"))


def write_gen_batch(path: Path, step: int, rows: Records) -> Mapping[str, int]:
    """Write one step as V0's trainer saves it; return what it has no place for, and how often.

    Raises:
        DumpError: Rows lack token ids or log_probs that others have.
        MissingPackageError: torch or verl is not installed.
    """
    torch = require("torch", extra="torch")
    verl = require("verl", extra="verl")
    _check_ids(path, step, rows)
    prompts = _padded([row.prompt_ids or () for row in rows], torch.int64, left=True)
    responses = _padded([row.response_ids or () for row in rows], torch.int64)
    seen = [[1] * len(row.prompt_ids or ()) for row in rows]
    made = [[1] * len(row.response_ids or ()) for row in rows]
    attention = torch.cat(
        [_padded(seen, torch.int64, left=True), _padded(made, torch.int64)], dim=1
    )
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": _padded([_mask(row) for row in rows], torch.int64),
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
        "rm_scores": _padded([_token_scores(row) for row in rows], torch.float32),
    }
    if rows[0].log_probs is not None:
        tensors["rollout_log_probs"] = _padded([row.log_probs or () for row in rows], torch.float32)
    kept = {name for row in rows for name in row.extras} - {"response_mask"}
    others = {}
    for name in sorted(kept):
        column = np.empty(len(rows), dtype=object)
        column[:] = [row.extras.get(name) for row in rows]
        others[name] = column
    batch = verl.DataProto.from_dict(tensors=tensors, non_tensors=others)
    path.parent.mkdir(parents=True, exist_ok=True)
    batch.save_to_disk(path)
    write_atomic(path.parent / "meta.json", json.dumps({"global_steps": step}))
    names = ("prompt", "response", "finish_reason", "uid", "dataset_index", "sample_index")
    return _lost(rows, (*names, "ground_truth"))


def _check_ids(path: Path, step: int, rows: Records) -> None:
    bare = sum(not row.prompt_ids or not row.response_ids for row in rows)
    if bare:
        raise DumpError(
            where=f"{path} (step {step})",
            problem=f"needs token ids, which {bare} of {len(rows)} rows lack",
            fix="record ids with the rollout; text encoded again can be other ids",
        )
    if len({row.log_probs is None for row in rows}) > 1:
        raise DumpError(
            where=f"{path} (step {step})",
            problem="some rows have log_probs and some have none",
            fix="convert them apart",
        )


def _groups(rows: Records) -> tuple[list[str], list[int]]:
    """Return each row's group and its number in it; V1's own uid ends in _SAMPLE_TURN."""
    uids, samples, seen = [], [], dict[str, int]()
    for row in rows:
        uid = (row.uid or f"prompt-{hash(row.prompt_ids) & 0xFFFFFFFF:08x}").split("_")[0]
        number = seen.get(uid, 0)
        seen[uid] = number + 1
        uids.append(uid)
        samples.append(number if row.sample_index is None else row.sample_index)
    return uids, samples


def _ids(row: RolloutRecord) -> tuple[int, ...]:
    return (*(row.prompt_ids or ()), *(row.response_ids or ()))


def _mask(row: RolloutRecord) -> list[int]:
    mask, size = row.extras.get("response_mask"), len(row.response_ids or ())
    return mask if isinstance(mask, list) and len(mask) == size else [1] * size


def _token_scores(row: RolloutRecord) -> list[float]:
    """Put the score at the last token, as verl's reward managers do."""
    return [0.0] * (len(row.response_ids or ()) - 1) + [row.score or 0.0]


def _padded(rows: Sequence[Sequence[float]], dtype: Any, *, left: bool = False) -> Any:
    width = max(map(len, rows))
    padding = [[_PADDING] * (width - len(row)) for row in rows]
    both = zip(padding, rows, strict=True)
    whole = [[*pad, *row] if left else [*row, *pad] for pad, row in both]
    return require("torch", extra="torch").tensor(whole, dtype=dtype)


def _lost(rows: Records, names: Sequence[str]) -> dict[str, int]:
    counts = {name: sum(getattr(row, name) is not None for row in rows) for name in names}
    rounded = sum(row.score is None for row in rows)
    return {**counts, "no score, written as 0": rounded}
