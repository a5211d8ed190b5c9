"""The bundled stack: each step as its training loop returns it."""

from __future__ import annotations

from typing import Any

from align.core.rollout_record import RolloutRecord
from dumps.capture.describe import describe
from dumps.capture.invariants import broken_in_batch
from dumps.capture.plan import What
from dumps.capture.rng import rng_line
from dumps.capture.session import Session, append_line
from dumps.capture.step_batch import StepBatch, files_of, wanted
from dumps.capture.stop import stop
from dumps.capture.wrap import After

NAME = "stack-0"


def train(session: Session, config: Any, *args: Any, **kwargs: Any) -> After:
    """Describe the run as it begins, and finish writing at its end."""
    if session.takes(What.CONFIG) and _is_first_rank():
        describe(session, NAME, "stack", _yaml(config), None)

    def finish(result: Any) -> None:
        session.drain()

    return finish


def step(
    session: Session, setup: Any, config: Any, pipeline: Any, step: int, *args: Any, **kwargs: Any
) -> After | None:
    """Record a step; every rank holds all of it, so the first alone writes."""
    if not session.plan.takes_step(step) or not _is_first_rank():
        return None

    def after(result: Any) -> None:
        collected, batch, metrics = result[:3]
        tensors = {name: getattr(batch, name, None) for name in wanted(session.plan)}
        kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        whole = StepBatch(step, _records(step, collected, setup.tokenizer, config.rollout.n), kept)
        session.writer(NAME).submit(step, lambda: files_of(whole, session.plan))
        if session.takes(What.METRICS):
            line = {"step": step, "data": {name: float(v) for name, v in metrics.items()}}
            append_line(session.plan.run / "metrics.jsonl", line)
        if session.takes(What.RNG):
            append_line(session.plan.run / "rng" / f"{NAME}.jsonl", rng_line(step))
        session.note_time(NAME, step)
        if session.plan.stops_on_error:
            eos = setup.tokenizer.eos_token_id
            broken = broken_in_batch(
                whole,
                num_samples=config.rollout.n,
                eos_ids=frozenset(() if eos is None else (eos,)),
                longest=config.data.max_response_length,
            )
            stop(session, step, broken)

    return after


def _records(step: int, collected: Any, tokenizer: Any, num_samples: int) -> list[RolloutRecord]:
    """Return the responses; those to one prompt are adjacent."""
    rows = zip(collected.responses, collected.scores, collected.rows, strict=True)
    return [
        RolloutRecord(
            prompt=tokenizer.decode(list(response.prompt_ids), skip_special_tokens=True),
            response=response.text,
            prompt_ids=tuple(response.prompt_ids),
            response_ids=tuple(response.response_ids),
            log_probs=tuple(map(float, response.log_probs)),
            score=float(score.total),
            step=step,
            dataset_index=row.index,
            sample_index=i % num_samples,
            finish_reason=response.finish_reason,
            ground_truth=row.ground_truth,
            uid=f"{step}-{i // num_samples}",
            extras={"task": row.task},
        )
        for i, (response, score, row) in enumerate(rows)
    ]


def _is_first_rank() -> bool:
    from torch import distributed

    return not distributed.is_initialized() or distributed.get_rank() == 0


def _yaml(config: Any) -> str:
    from dataclasses import asdict

    from omegaconf import OmegaConf

    return str(OmegaConf.to_yaml(OmegaConf.create(asdict(config))))
