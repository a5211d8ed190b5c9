"""verl's driver: the whole batch of a step, the metrics, the configuration."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from align.core.rollout_record import RolloutRecord
from dumps.capture.describe import describe, stop_ids
from dumps.capture.invariants import broken_in_batch
from dumps.capture.padding import joined, padded, rows_of
from dumps.capture.plan import What
from dumps.capture.rng import rng_line
from dumps.capture.session import Session, append_line
from dumps.capture.step_batch import StepBatch, TextOf, decoder, files_of
from dumps.capture.stop import stop
from dumps.capture.wrap import After

NAME = "driver-0"
_MATRICES = ("response_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob", "values")
_RESPONSE_COLUMNS = (*_MATRICES, "rm_scores", "token_level_rewards", "advantages", "returns")
_FACTS = ("uid", "session_id", "index", "reward_model", "data_source", "num_turns", "extra_fields")


@dataclass(frozen=True, slots=True)
class _Driver:
    """The trainer object of this process, and what is known of it for the whole run."""

    trainer: Any
    text_of: TextOf | None
    eos_ids: frozenset[int]
    num_samples: int | None
    longest: int | None

    @property
    def step(self) -> int:
        return int(self.trainer.global_steps)


_driver: _Driver | None = None


def trainer(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """Remember the trainer as ``fit`` begins, describe the run, and finish writing at its end."""
    global _driver
    rollout, tokenizer = self.config.actor_rollout_ref.rollout, self.tokenizer
    _driver = _Driver(
        trainer=self,
        text_of=decoder(tokenizer) if session.takes(What.ROLLOUTS) else None,
        eos_ids=stop_ids(tokenizer.eos_token_id, self.config.actor_rollout_ref.model.path),
        num_samples=int(rollout.n),
        longest=int(self.config.data.max_response_length),
    )
    if session.takes(What.CONFIG):
        describe(
            session, NAME, "verl", _yaml(self.config), self.config.actor_rollout_ref.model.path
        )

    def finish(result: Any) -> None:
        session.drain()

    session.note_time(NAME, 0)
    return finish


def metrics(session: Session, self: Any, data: Any, step: int, *args: Any, **kwargs: Any) -> None:
    """Append what is logged for a step, in full precision."""
    if session.takes(What.METRICS) and session.plan.takes_step(max(step, 1)):
        values = {name: _plain(value) for name, value in dict(data).items()}
        numbers = {name: value for name, value in values.items() if value is not None}
        append_line(session.plan.run / "metrics.jsonl", {"step": step, "data": numbers})


def queued_batch(session: Session, self: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Fetch a step's rows of the V1 trainer from its TransferQueue, and record them."""
    driver = _driver
    if driver is None or not _takes_step(session, driver.step):
        return
    padding = [bool(tag.get("is_padding")) for tag in batch.tags]
    keys = [key for key, pads in zip(batch.keys, padding, strict=True) if not pads]
    fields = [*_FACTS, "prompts", "responses", "position_ids", *_RESPONSE_COLUMNS]
    data = import_module("transfer_queue").kv_batch_get(
        keys=keys, partition_id=batch.partition_id, select_fields=fields
    )
    step = driver.step
    _record(session, driver, step, lambda: _laid_out(driver, step, data))


def padded_batch(session: Session, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Record the batch of the V0 trainer, which is padded and complete when metrics are made."""
    driver = _driver
    if driver is None or not _takes_step(session, driver.step) or "input_ids" not in batch.batch:
        return
    tensors = {name: batch.batch[name] for name in batch.batch.keys()}  # noqa: SIM118
    columns = {name: batch.non_tensor_batch.get(name) for name in (*_FACTS, "extra_info")}
    step = driver.step
    _record(session, driver, step, lambda: _as_padded(driver, step, tensors, columns))


def _laid_out(driver: _Driver, step: int, data: Any) -> StepBatch:
    """Return rows out of the TransferQueue as a batch, padded as the V0 trainer pads."""
    facts = {name: _listed(data.get(name, None)) for name in _FACTS}
    prompts, responses = rows_of(data["prompts"]), rows_of(data["responses"])
    matrices = {
        name: padded(rows_of(data[name]), 0)
        for name in _RESPONSE_COLUMNS
        if data.get(name, None) is not None
    }
    scores = matrices.pop("rm_scores", None)
    if scores is not None:
        matrices.setdefault("token_level_rewards", scores)
        matrices["token_level_scores"] = scores
    pad = driver.trainer.tokenizer.pad_token_id or 0
    ones = [[row.new_ones(len(row)) for row in rows] for rows in (prompts, responses)]
    tensors = {
        **matrices,
        "input_ids": joined(prompts, responses, pad),
        "attention_mask": joined(ones[0], ones[1], 0),
        "position_ids": _positions(rows_of(data["position_ids"]), prompts, responses),
        "responses": padded(responses, pad),
    }
    lists = [[row.tolist() for row in rows] for rows in (prompts, responses)]
    records = list(_records(driver, step, facts, lists[0], lists[1], tensors))
    return StepBatch(step, records, tensors, driver.text_of)


def _as_padded(
    driver: _Driver, step: int, tensors: Mapping[str, Any], columns: Mapping[str, Any]
) -> StepBatch:
    """Return the V0 trainer's batch."""
    ids, attention = tensors["input_ids"], tensors["attention_mask"] != 0
    split = ids.shape[1] - tensors["responses"].shape[1]
    lists = [
        [row[seen].tolist() for row, seen in zip(ids[:, part], attention[:, part], strict=True)]
        for part in (slice(None, split), slice(split, None))
    ]
    facts = {name: _listed(column) for name, column in columns.items()}
    records = list(_records(driver, step, facts, lists[0], lists[1], tensors))
    return StepBatch(step, records, tensors, driver.text_of)


def _record(
    session: Session, driver: _Driver, step: int, make_batch: Callable[[], StepBatch]
) -> None:
    """Have a step written; what it takes is done by the writing thread, unless a check needs it."""
    plan = session.plan
    made = functools.cache(make_batch)
    if plan.stops_on_error:
        made()
    session.writer(NAME).submit(step, lambda: files_of(made(), plan))
    if session.takes(What.RNG):
        append_line(plan.run / "rng" / f"{NAME}.jsonl", rng_line(step))
    session.note_time(NAME, step)
    if plan.stops_on_error:
        broken = broken_in_batch(
            made(), num_samples=driver.num_samples, eos_ids=driver.eos_ids, longest=driver.longest
        )
        stop(session, step, broken)


def _records(
    driver: _Driver,
    step: int,
    facts: Mapping[str, list[Any] | None],
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    tensors: Mapping[str, Any],
) -> Iterator[RolloutRecord]:
    scores = tensors.get("token_level_scores")
    log_probs, mask = tensors.get("rollout_log_probs"), tensors.get("response_mask")
    totals = None if scores is None else scores.double().sum(-1).tolist()
    seen: Counter[Any] = Counter()
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        fact = {name: column[i] for name, column in facts.items() if column is not None}
        uid = fact.get("uid")
        number = fact.get("session_id", seen[uid] if uid is not None else None)
        seen[uid] += 1
        generated = None if mask is None else mask[i, : len(response)].tolist()
        yield RolloutRecord(
            prompt_ids=tuple(prompt),
            response_ids=tuple(response),
            log_probs=None if log_probs is None else tuple(log_probs[i, : len(response)].tolist()),
            score=None if totals is None else totals[i],
            step=step,
            dataset_index=_dataset_index(fact),
            sample_index=_whole(number),
            finish_reason=_finish_reason(response, driver),
            ground_truth=_ground_truth(fact.get("reward_model")),
            uid=None if uid is None else str(uid),
            extras=_extras(fact, generated),
        )


def _finish_reason(response: Sequence[int], driver: _Driver) -> str | None:
    """Return why a response ended, by its ids: verl hands on no word of the engine."""
    if response and response[-1] in driver.eos_ids:
        return "stop"
    return "length" if driver.longest is not None and len(response) >= driver.longest else None


def _dataset_index(fact: Mapping[str, Any]) -> int | None:
    """Return the data set's number of a row; V0 takes it out of the batch and leaves its source."""
    info = fact.get("extra_info")
    stated = info.get("index") if isinstance(info, Mapping) else None
    return _whole(fact.get("index", stated))


def _extras(fact: Mapping[str, Any], mask: Sequence[float] | None) -> dict[str, Any]:
    fields = fact.get("extra_fields")
    rewards = fields.get("reward_extra_info") if isinstance(fields, Mapping) else None
    extras = {f"reward/{name}": _plain_json(v) for name, v in dict(rewards or {}).items()}
    for name in ("data_source", "num_turns"):
        if fact.get(name) is not None:
            extras[name] = _plain_json(fact[name])
    if mask is not None and not all(mask):
        extras["response_mask"] = [int(value) for value in mask]
    return extras


def _positions(rows: Sequence[Any], prompts: Sequence[Any], responses: Sequence[Any]) -> Any:
    """Return position_ids laid out as input_ids are; several axes (images) come first, as saved."""
    parts = [
        (row[..., : len(prompt)], row[..., len(prompt) : len(prompt) + len(response)])
        for row, prompt, response in zip(rows, prompts, responses, strict=True)
    ]
    if all(row.ndim == 1 for row in rows):
        return joined([p for p, _ in parts], [r for _, r in parts], 0)
    import torch

    axes = range(rows[0].shape[0])
    each = [joined([p[axis] for p, _ in parts], [r[axis] for _, r in parts], 0) for axis in axes]
    return torch.stack(each, dim=1)


def _takes_step(session: Session, step: int) -> bool:
    kinds = (What.ROLLOUTS, What.INPUTS, What.LOG_PROBS)
    return session.takes(*kinds) and session.plan.takes_step(step)


def _listed(column: Any) -> list[Any] | None:
    """Return a column of any of verl's containers as a list."""
    if column is None:
        return None
    return list(column.tolist() if hasattr(column, "tolist") else column)


def _plain(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _plain_json(value: Any) -> Any:
    """Return a value that JSON can hold; numbers of NumPy as Python's, other things as text."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _whole(value: Any) -> int | None:
    number = _plain(value)
    return int(number) if number is not None and number.is_integer() and number >= 0 else None


def _ground_truth(reward_model: Any) -> str | None:
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    return None if truth is None else str(truth)


def _yaml(config: Any) -> str:
    from omegaconf import OmegaConf

    return str(OmegaConf.to_yaml(config, resolve=True))
