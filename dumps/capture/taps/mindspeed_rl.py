"""MindSpeed-RL's hybrid actor worker: responses as it puts them into the dock, and its updates.

One process holds actor and rollout engine, so one writer has a rank's responses and micro-batches.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from align.core.rollout_record import RolloutRecord
from dumps.capture.device import copied
from dumps.capture.invariants import broken_in_update
from dumps.capture.megatron_gradients import megatron_gradient_squares
from dumps.capture.plan import What
from dumps.capture.session import Session, append_line
from dumps.capture.step_batch import StepBatch, TextOf, files_of, wanted
from dumps.capture.step_sketches import Part
from dumps.capture.stop import stop
from dumps.capture.taps.mindspeed_rl_rows import TrainedRows, scores_of, trains_rows
from dumps.capture.taps.mindspeed_rl_run import describe_run
from dumps.capture.taps.mindspeed_rl_sketches import ActorSketches, sketches_of
from dumps.capture.update_record import UpdateRecord, step_file, writes
from dumps.capture.wrap import After, wrap


@dataclass
class _Worker:
    """This process's rank, and the step in progress.

    Args:
        rounds: how often each row of the dock was filled in this step.
        trained: rows that the update was handed.
        text_of: None where the worker's tokenizer makes no texts.
        sketches: None where the plan asks for none, or none can be made.
        is_known: whether the worker was seen: the run is described, and sketches were begun if
            there are any.
    """

    step: int = 1
    rounds: Counter[int] = field(default_factory=Counter)
    records: list[RolloutRecord] = field(default_factory=list)
    record: UpdateRecord = field(default_factory=UpdateRecord)
    trained: TrainedRows = field(default_factory=TrainedRows)
    text_of: TextOf | None = None
    sketches: ActorSketches | None = None
    is_known: bool = False

    @property
    def rank(self) -> int:
        return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


_worker = _Worker()


def generating(session: Session, self: Any, *args: Any, **kwargs: Any) -> None:
    """Note the step that begins; the first time, say what the run is and look at the actor."""
    _worker.step = int(self.iteration) + 1  # args.iteration stays where training began
    if _worker.is_known:
        return
    _worker.is_known = True
    with session.log.kept("describing the run"):
        _worker.text_of = describe_run(session, self, _worker.rank)
    if not session.takes(What.SKETCHES, What.WEIGHTS):
        return
    with session.sketching("the actor"):
        _worker.sketches = sketches_of(session, self, _worker.rank)
        if _worker.sketches is not None:
            _worker.sketches.begin(session, _worker.step)


def reading(session: Session, self: Any, *args: Any, **kwargs: Any) -> None:
    """Sketch the actor's weights as the resharding begins to read them: later it may move them."""
    if _worker.sketches is not None:
        with session.sketching("the actor's weights"):
            _worker.sketches.record_sent(session, _worker.step, self.vllm_model)


def resharding(session: Session, self: Any, *args: Any, **kwargs: Any) -> After | None:
    """Sketch the rollout engine's weights once it has its new ones."""
    sketches = _worker.sketches
    if sketches is None:
        return None

    def after(result: Any) -> None:
        with session.sketching("the engine's weights"):
            sketches.record_given(session, _worker.step, self.inference_engine.model)

    return after


def batched(session: Session, *args: Any, **kwargs: Any) -> After | None:
    """Note which ids of a micro-batch are padding, before the model sees it."""
    sketches = _worker.sketches
    if sketches is None:
        return None

    def after(result: Any) -> None:
        with session.sketching("token keys"):
            sketches.expect(result)

    return after


def collected(
    session: Session, self: Any, output: Any, index: Any, *args: Any, **kwargs: Any
) -> None:
    """Keep responses on their way into the dock; other stages' output has no ``responses``.

    ``index`` counts responses: prompt = index // n, sample = index % n. Where groups are filtered
    (DAPO), a step generates several times into the same rows, for other prompts each time.
    """
    if not {"responses", "input_ids"} <= set(output) or not session.takes(What.ROLLOUTS):
        return
    if not puts_rows(self, bool(args[0]) if args else bool(kwargs.get("use_vllm"))):
        return
    num_samples = int(getattr(self.rl_config, "n_samples_per_prompt", 1))
    _worker.step = int(self.iteration) + 1
    for row, ids, response in zip(index, output["input_ids"], output["responses"], strict=True):
        again = _worker.rounds[int(row)]
        _worker.rounds[int(row)] += 1
        answer = tuple(int(i) for i in response.tolist())
        whole = tuple(int(i) for i in ids.tolist())
        _worker.records.append(
            RolloutRecord(
                prompt_ids=whole[: len(whole) - len(answer)],
                response_ids=answer,
                step=_worker.step,
                sample_index=int(row) % num_samples,
                uid=f"{_worker.step}-{int(row) // num_samples}{f'-again-{again}' if again else ''}",
                extras={"dock_row": int(row)},
            )
        )


def puts_rows(worker: Any, use_vllm: bool) -> bool:
    """Tell whether this rank is the one of its tensor-parallel group that fills the dock."""
    base = sys.modules.get("mindspeed_rl.workers.base_worker")
    if not hasattr(base, "is_pipeline_last_stage"):
        return True
    state = worker.parallel_state
    is_last: bool = base.is_pipeline_last_stage(state, use_vllm)  # type: ignore[union-attr]
    rank: int = base.get_tensor_model_parallel_rank(state, use_vllm)  # type: ignore[union-attr]
    return is_last and rank == 0


def dispatched(
    session: Session, self: Any, experience_consumer_stage: str, *args: Any, **kwargs: Any
) -> After | None:
    """Keep the rows that the dock hands out to the update."""
    if experience_consumer_stage != "actor_train" or not _is_wanted(session):
        return None
    if not session.takes(What.INPUTS, What.LOG_PROBS) or not trains_rows(self):
        return None

    def after(result: Any) -> None:
        batch, index = result
        if batch and index is not None and len(index):
            _worker.trained.keep(batch, index)

    return after


def logged(
    session: Session, self: Any, msg: Any, iteration: Any = None, *args: Any, **kwargs: Any
) -> None:
    """Append what the trainer prints of an iteration, under MindSpeed-RL's names."""
    if iteration is None or not isinstance(msg, dict) or not session.takes(What.METRICS):
        return
    values = {name: float(v) for name, v in msg.items() if isinstance(v, int | float)}
    append_line(session.plan.run / "metrics.jsonl", {"step": int(iteration), "data": values})


def _is_wanted(session: Session) -> bool:
    plan = session.plan
    return plan.takes_step(_worker.step) and plan.takes_rank(_worker.rank)


def policy_loss(
    session: Session,
    *args: Any,
    log_prob: Any,
    old_log_prob: Any = None,
    ref_log_prob: Any = None,
    advantages: Any = None,
    eos_mask: Any = None,
    **kwargs: Any,
) -> After | None:
    """Keep what the loss of a micro-batch is computed from; every loss is called by names."""
    if not session.takes(What.LOG_PROBS) or not _is_wanted(session):
        return None

    def after(result: Any) -> None:
        if _worker.trained.index and eos_mask is not None:
            _worker.trained.masks.append(eos_mask.detach())
        _worker.record.begin_micro_batch()
        _worker.record.keep(
            {
                "old_log_probs": old_log_prob,
                "log_probs": log_prob,
                "ref_log_prob": ref_log_prob,
                "advantages": advantages,
                "response_mask": eos_mask,
                "policy_loss": result[0],
            }
        )

    return after


def engine(session: Session, self: Any, *args: Any, **kwargs: Any) -> After | None:
    """Look at the optimizer's steps for as long as the actor's engine updates."""
    if self.role != "actor" or not _is_wanted(session):
        return None
    optimizer = self.optimizer
    own = vars(optimizer).get("step")
    tap = partial(_optimizer_step, session, self.model, optimizer)
    wrap(optimizer, "step", "mindspeed_rl: optimizer step", tap, session.log)

    def after(result: Any) -> None:
        if own is None:
            del optimizer.step
        else:
            optimizer.step = own

    return after


def _optimizer_step(session: Session, chunks: Any, optimizer: Any) -> After:
    record = _worker.record
    if session.takes(What.GRAD_NORMS):
        names, squares = megatron_gradient_squares(chunks, optimizer)
        record.keep_rows(f"update.{record.update}.gradient_squares", names, squares)
    sketched = None
    if _worker.sketches is not None:
        with session.sketching("the gradients"):
            sketched = _worker.sketches.sketches.update(chunks, optimizer)

    def after(result: Any) -> None:
        if sketched is not None:
            with session.sketching("the update"):
                sketched()
        if session.takes(What.GRAD_NORMS):
            record.keep_norm(result[1])  # (whether it updated, norm, number of zeros)
        record.end_update()

    return after


def updated(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """End the step after an update; its number is the iteration it began with, plus one."""
    step = _worker.step = int(self.iteration) + 1

    def after(result: Any) -> None:
        rows: dict[str, Any] = {}
        with session.log.kept("the rows of an update"):
            rows = _with_scores(session, self)
        records, record, rank = _worker.records, _worker.record, _worker.rank
        parts: list[Part] = []
        if _worker.sketches is not None:
            with session.sketching("the step"):
                parts = _worker.sketches.end(session, step)
        _worker.records, _worker.record, _worker.step = [], UpdateRecord(), step + 1
        _worker.trained = TrainedRows()
        _worker.rounds.clear()
        if not session.plan.takes_step(step):
            return
        tensors = record.on_device()
        sums = {name: tensor for part in parts for name, tensor in part.tensors().items()}
        host, name = copied({**tensors, **sums}), f"actor-{rank}"
        files = files_of(StepBatch(step, records, rows, _worker.text_of), session.plan, rank)
        if tensors:
            own = {name: host[name] for name in tensors}
            files[step_file(step, name)] = writes(own, record.notes(step, rank, "actor"))
        for part in parts:
            files.update(part.writes(host))
        session.writer(name).submit(step, lambda: files)
        session.note_time(name, step)
        session.writer(name).drain()  # Ray ends its workers without notice
        if session.plan.stops_on_error and "update.0.micro.0.old_log_probs" in host:
            first = [host[f"update.0.micro.0.{n}"] for n in ("old_log_probs", "log_probs")]
            mask = host["update.0.micro.0.response_mask"]
            stop(session, step, broken_in_update(first[0], first[1], mask))

    return after


def _with_scores(session: Session, worker: Any) -> dict[str, Any]:
    """Give the step's responses their scores; return the rows trained on, as far as recorded.

    Where groups are filtered (DAPO) responses stand in a dock of their own, in other rows.
    """
    trained, records = _worker.trained, _worker.records
    if not trained.index and not records:
        return {}
    settings = worker.rl_config
    if any(getattr(settings, name, False) for name in ("shuffle_mini_batch", "use_dynamic_bsz")):
        trained.masks.clear()  # micro-batches hold the rows in another order
    is_one_dock = getattr(worker, "sampling_transfer_dock", None) is None
    own = {int(record.extras["dock_row"]) for record in records} if is_one_dock else set()
    scores = scores_of(worker, sorted(own.union(trained.index)))
    if is_one_dock:
        places = [int(record.extras["dock_row"]) for record in records]
        pairs = zip(records, places, strict=True)
        _worker.records = [replace(record, score=scores.get(row)) for record, row in pairs]
    if not trained.index:
        return {}
    tokenizer = worker.tokenizer
    pad = int(tokenizer.pad if tokenizer.pad else tokenizer.eod)  # as the worker itself has it
    tensors = trained.tensors(pad, scores)
    return {name: value for name, value in tensors.items() if name in wanted(session.plan)}
