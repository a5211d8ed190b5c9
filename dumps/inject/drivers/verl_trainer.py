"""verl's driver process at each step: deals out groups, keeps the order, says what was used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from dumps.inject.drivers.verl_places import places_of_rows, unpadded
from dumps.inject.drivers.verl_state import NAME, STAMP, state
from dumps.inject.problem import Problem
from dumps.inject.replay import Replay


def dispatch_queued(replay: Replay, original: Any, self: Any, prompts: Any) -> Any:
    """V1: stamp each prompt with its group before it goes to the workers."""
    if "validate" in prompts and bool(prompts["validate"]):
        return original(self, prompts)
    from tensordict.tensorclass import NonTensorData, NonTensorStack

    step = int(prompts["global_steps"])
    uids = [str(uid) for uid in _column(prompts, "uid")]
    names = [name for name in ("raw_prompt", "index") if name in prompts]
    columns = {name: _column(prompts, name) for name in names}
    rows = [{n: c[i] for n, c in columns.items()} for i in range(len(uids))]
    stamps = _deal(replay, step, uids, rows)
    prompts[STAMP] = NonTensorStack(*[NonTensorData(stamp) for stamp in stamps])
    return original(self, prompts)


def dispatch_padded(replay: Replay, original: Any, self: Any, prompts: Any) -> Any:
    """V0: stamp each row with its group and its number therein."""
    facts = prompts.non_tensor_batch
    if prompts.meta_info.get("validate", False) or "uid" not in facts:
        return original(self, prompts)
    import numpy as np

    step = int(prompts.meta_info["global_steps"])
    sampled = facts.get("__do_sample__")
    uids = [str(uid) for uid in facts["uid"]]
    kept = [i for i in range(len(uids)) if sampled is None or bool(sampled[i])]
    each = list(dict.fromkeys(uids[i] for i in kept))
    place = {uids[i]: i for i in reversed(kept)}
    names = [name for name in ("raw_prompt", "raw_prompt_ids", "index") if name in facts]
    rows = [{name: facts[name][place[uid]] for name in names} for uid in each]
    stamps = dict(zip(each, _deal(replay, step, each, rows), strict=True))
    seen = dict.fromkeys(each, 0)
    column = np.full(len(uids), "", dtype=object)
    for i in kept:
        stamp = stamps[uids[i]]
        column[i] = f"{stamp}:{seen[uids[i]]}" if stamp else ""
        seen[uids[i]] += 1
    facts[STAMP] = column
    output = original(self, prompts)
    facts.pop(STAMP, None)
    getattr(output, "non_tensor_batch", {}).pop(STAMP, None)
    return output


def _deal(
    replay: Replay, step: int, uids: Sequence[str], rows: Sequence[dict[str, Any]]
) -> list[str]:
    """Return each prompt's stamp, empty where its responses are generated."""
    makes = state.templating
    groups = replay.give(step, [makes.prompt(row) for row in rows])
    state.uids.update({u: (step, g) for u, g in zip(uids, groups, strict=True) if g is not None})
    return ["" if group is None else f"{step}:{group}" for group in groups]


def balanced_queued(
    replay: Replay, original: Any, self: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """V1: see that no worker has refused, and put the rows into the recorded order."""
    replay.refuse_what_was_swallowed()
    num_prompts = int(self.config.data.train_batch_size) // int(self.parameter_sync_step)
    _refuse_incomplete(replay, int(self.global_steps), batch.keys, num_prompts)
    replay.verify(int(self.global_steps), _queued_rows(replay, batch, ["prompts", "responses"]))
    batch = original(self, batch, *args, **kwargs)
    places = [
        None if tag.get("is_padding") else _queued_place(replay, key)
        for key, tag in zip(batch.keys, batch.tags, strict=True)
    ]
    batch.reorder(_recorded_order(places))
    return batch


def balanced_padded(
    replay: Replay, original: Any, self: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """V0: put the rows into the recorded order."""
    replay.refuse_what_was_swallowed()
    result = original(self, batch, *args, **kwargs)
    step = replay.step(int(self.global_steps))
    if step is not None:
        import torch

        places = places_of_rows(step, batch, state.text_of)
        lists = unpadded(batch.batch)
        replay.verify(step.number, [(p, *ids) for p, ids in zip(places, lists, strict=True)])
        batch.reorder(torch.tensor(_recorded_order(places)))
    return result


def consumed_queued(
    replay: Replay, original: Any, self: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """V1: write down what the step trained on, before the queue forgets it."""
    fields = ["prompts", "responses", "rm_scores"]
    replay.consumed(NAME, int(self.global_steps), _queued_rows(replay, batch, fields))
    return original(self, batch, *args, **kwargs)


def consumed_padded(replay: Replay, original: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """V0: write down what the step trained on."""
    if state.trainer is not None and "input_ids" in batch.batch:
        number = int(state.trainer.global_steps)
        step = replay.step(number)
        tensors = batch.batch
        rows = (
            places_of_rows(step, batch, state.text_of) if step is not None else [None] * len(batch)
        )
        scores = tensors["token_level_scores"].double().sum(-1).tolist()
        lists = unpadded(tensors)
        lines = [(p, *ids, s) for p, ids, s in zip(rows, lists, scores, strict=True)]
        replay.consumed(NAME, number, lines)
    return original(batch, *args, **kwargs)


def _refuse_incomplete(
    replay: Replay, step_number: int, keys: Sequence[str], num_prompts: int
) -> None:
    """Refuse a batch that lacks what a worker failed at: verl pads such a batch and goes on."""
    counts: dict[str, set[str]] = {}
    for key in keys:
        uid, _, rest = key.partition("_")
        counts.setdefault(uid, set()).add(rest.partition("_")[0])
    if len(counts) < num_prompts:
        text = f"{len(counts)} of {num_prompts} prompts came through; see the workers' log"
        replay.refuse([Problem(text, step_number)])
    for uid, sessions in counts.items():
        if uid in state.uids:
            number, group = state.uids[uid]
            step = replay.step(number)
            rows = step.groups[group].rows if step is not None else ()
            if len(sessions) != len(rows):
                text = f"{len(sessions)} of {len(rows)} responses to a prompt came through"
                replay.refuse([Problem(text, number)])


def _queued_place(replay: Replay, key: str) -> int | None:
    """Return the recorded row of a key "uid_session_output"."""
    uid, _, rest = key.partition("_")
    if uid not in state.uids:
        return None
    number, group = state.uids[uid]
    step = replay.step(number)
    sample = int(rest.partition("_")[0])
    return None if step is None else step.groups[group].rows[sample]


def _queued_rows(replay: Replay, batch: Any, fields: list[str]) -> list[tuple[Any, ...]]:
    """Return (recorded row, prompt ids, response ids, score) of every row that is no padding."""
    tags = zip(batch.keys, batch.tags, strict=True)
    keys = [key for key, tag in tags if not tag.get("is_padding")]
    data = import_module("transfer_queue").kv_batch_get(
        keys=keys, partition_id=batch.partition_id, select_fields=fields
    )
    scores = data.get("rm_scores", None)
    totals = [None] * len(keys) if scores is None else [float(s.sum()) for s in scores.unbind()]
    rows = zip(keys, data["prompts"].unbind(), data["responses"].unbind(), totals, strict=True)
    return [(_queued_place(replay, k), p.tolist(), r.tolist(), s) for k, p, r, s in rows]


def _recorded_order(places: Sequence[int | None]) -> list[int]:
    """Return the batch's positions, recorded rows first and as recorded, the others as they are."""
    last = len(places) + max((p for p in places if p is not None), default=0)
    ranked = [(last if place is None else place, i) for i, place in enumerate(places)]
    return [i for _, i in sorted(ranked)]


def _column(batch: Any, name: str) -> list[Any]:
    """Return a column of a TensorDict row by row: a tensor, or a stack of other things."""
    column = batch.get(name)
    items = [column[i] for i in range(len(column))]
    return [item.data if hasattr(item, "batch_size") else item for item in items]
