"""verl's driver process: checks before the first step, deals out groups, keeps the order."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dumps.capture.install import installed_version
from dumps.inject.drivers.verl_order import ordered_positions
from dumps.inject.drivers.verl_places import places_of_rows, unpadded
from dumps.inject.drivers.verl_prompts import FixedOrder, Templating, templating, upcoming
from dumps.inject.plan import Source
from dumps.inject.preflight import Candidate
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt
from dumps.inject.replay import Replay

STAMP = "align_replay"
"""Field that carries "step:group" or "step:group:sample" to the workers, which take it away."""

NAME = "driver-0"
_uids: dict[str, tuple[int, int]] = {}
_makes: list[Templating] = []


def fit(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare the whole record with the run, then let it begin."""
    config = self.config
    rollout, data = config.actor_rollout_ref.rollout, config.data
    first = _steps_done(self) + 1
    wanted = range(first, int(self.total_training_steps) + 1)
    makes = templating(self.tokenizer, data)
    _makes[:] = [makes]
    filters = bool((config.algorithm.get("filter_groups") or {}).get("enable"))
    asked: dict[int, list[Prompt]] = {}
    if first == 1 and not filters:
        known = [step for step in wanted if step in replay.steps]
        ahead = upcoming(self.train_dataloader, makes, int(data.train_batch_size), len(known))
        asked = dict(zip(known, ahead, strict=False)) if known == list(wanted)[: len(known)] else {}
    run = Candidate(
        num_samples=int(rollout.n),
        max_prompt_length=int(data.max_prompt_length),
        max_response_length=int(data.max_response_length),
        eos_ids=_eos_ids(self.tokenizer, config.actor_rollout_ref.model.path),
        asks_log_probs=bool(rollout.get("calculate_log_probs", False)),
    )
    more = [
        Problem(
            "algorithm.filter_groups draws prompts until enough groups have a signal, and only "
            "the groups that stayed are recorded; pass --order with the recorded run",
            is_missing=True,
        )
    ]
    hidden = more if filters and not replay.plan.sets_order else []
    version = installed_version("verl")
    if replay.plan.rewards is Source.RECORDED and version is not None and version < (0, 7):
        hidden.append(Problem("--rewards recorded needs verl 0.7 or later"))
    replay.check(run, wanted, asked, self.tokenizer, hidden)
    return original(self, *args, **kwargs)


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
    makes = _makes[0]
    groups = replay.give(step, [makes.prompt(row) for row in rows])
    _uids.update({u: (step, g) for u, g in zip(uids, groups, strict=True) if g is not None})
    return ["" if group is None else f"{step}:{group}" for group in groups]


def balanced_queued(
    replay: Replay, original: Any, self: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """V1: see that no worker has refused, and put the rows into the recorded order."""
    replay.refuse_what_was_swallowed()
    _refuse_incomplete(replay, batch.keys)
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

        places = places_of_rows(step, batch, _decode)
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


_trainer: list[Any] = []


def fit_padded(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """V0: remember the trainer, whose step the batch of metrics does not say."""
    _trainer[:] = [self]
    return fit(replay, original, self, *args, **kwargs)


def consumed_padded(replay: Replay, original: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """V0: write down what the step trained on."""
    if _trainer and "input_ids" in batch.batch:
        number = int(_trainer[0].global_steps)
        step = replay.step(number)
        tensors = batch.batch
        rows = places_of_rows(step, batch, _decode) if step is not None else [None] * len(batch)
        scores = tensors["token_level_scores"].double().sum(-1).tolist()
        lists = unpadded(tensors)
        lines = [(p, *ids, s) for p, ids, s in zip(rows, lists, scores, strict=True)]
        replay.consumed(NAME, number, lines)
    return original(batch, *args, **kwargs)


def sampler(
    replay: Replay, original: Any, data_config: Any, dataset: Any, *args: Any, **kwargs: Any
) -> Any:
    """V1: give the recorded rows in the recorded order."""
    own = original(data_config, dataset, *args, **kwargs)
    if not replay.plan.sets_order:
        return own
    return _fixed(replay, dataset, data_config, dataset.tokenizer, own)


def loader(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """V0: the same, where the sampler is handed to the trainer."""
    if not replay.plan.sets_order:
        return original(self, *args, **kwargs)
    bound = inspect.signature(original).bind(self, *args, **kwargs).arguments
    given = bound.get("train_sampler")
    if given is None or bound.get("train_dataset") is None:
        replay.refuse([Problem("--order: this run hands no sampler to its trainer")])
    bound["train_sampler"] = _fixed(
        replay, bound["train_dataset"], self.config.data, self.tokenizer, given
    )
    return original(**bound)


def _fixed(replay: Replay, dataset: Any, data_config: Any, tokenizer: Any, own: Any) -> FixedOrder:
    batch_size = int(data_config.get("gen_batch_size") or data_config.train_batch_size)
    makes = templating(tokenizer, data_config)
    return FixedOrder(ordered_positions(replay, dataset, makes), batch_size, own)


def _refuse_incomplete(replay: Replay, keys: Sequence[str]) -> None:
    counts: dict[str, set[str]] = {}
    for key in keys:
        uid, _, rest = key.partition("_")
        counts.setdefault(uid, set()).add(rest.partition("_")[0])
    for uid, sessions in counts.items():
        if uid in _uids:
            number, group = _uids[uid]
            step = replay.step(number)
            rows = step.groups[group].rows if step is not None else ()
            if len(sessions) != len(rows):
                text = f"{len(sessions)} of {len(rows)} responses to a prompt came through"
                replay.refuse([Problem(text, number)])


def _queued_place(replay: Replay, key: str) -> int | None:
    """Return the recorded row of a key "uid_session_output"."""
    uid, _, rest = key.partition("_")
    if uid not in _uids:
        return None
    number, group = _uids[uid]
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


def _decode(ids: Sequence[int]) -> str:
    return str(_makes[0].tokenizer.decode(list(ids), skip_special_tokens=True))


def _steps_done(trainer: Any) -> int:
    """Return the step a run goes on after: V1 has loaded its checkpoint, V0 does it later."""
    done = int(getattr(trainer, "global_steps", 0) or 0)
    settings = trainer.config.trainer
    if done or settings.get("resume_mode", "disable") == "disable":
        return done
    path = Path(str(settings.get("default_local_dir"))) / "latest_checkpointed_iteration.txt"
    return int(path.read_text()) if path.is_file() else 0


def _eos_ids(tokenizer: Any, model: str) -> frozenset[int]:
    ids = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    path = Path(str(model)) / "generation_config.json"
    if path.is_file():
        given = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        ids |= set(given if isinstance(given, list) else [] if given is None else [given])
    return frozenset(ids)
