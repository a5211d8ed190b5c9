"""Which recorded row each row of a V0 batch stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dumps.inject.match import assign
from dumps.inject.recorded import Prompt, Step


def places_of_rows(
    step: Step, batch: Any, uids: Mapping[str, tuple[int, int]]
) -> list[int | None]:
    """Return places in the recorded step, None for rows of prompts that are not recorded.

    Args:
        batch: a DataProto with ids, padded, and a uid a row.
        uids: (step, group) of prompts dealt out; the others are found by their ids.
    """
    tensors = batch.batch
    width = tensors["input_ids"].shape[1] - tensors["responses"].shape[1]
    seen = tensors["attention_mask"] != 0
    members: dict[str, list[int]] = {}
    for i, uid in enumerate(batch.non_tensor_batch["uid"]):
        members.setdefault(str(uid), []).append(i)
    groups = {uid: uids[uid][1] for uid in members if uids.get(uid, (None,))[0] == step.number}
    for uid in members.keys() - groups.keys():
        first = members[uid][0]
        ids = tensors["input_ids"][first, :width][seen[first, :width]].tolist()
        (found,) = assign(step, [Prompt(tuple(ids))], list(groups.values()))
        if found is not None:
            groups[uid] = found
    places: list[int | None] = [None] * len(seen)
    for uid, group in groups.items():
        left = list(step.groups[group].rows)
        unlike = []
        for i in members[uid]:
            ids = tensors["responses"][i][seen[i, width:]].tolist()
            twin = next((p for p in left if list(step.records[p].response_ids or ()) == ids), None)
            if twin is None:
                unlike.append(i)
            else:
                left.remove(twin)
                places[i] = twin
        for i, place in zip(unlike, left, strict=False):
            places[i] = place
    return places
