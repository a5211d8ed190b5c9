"""TRL's GRPOTrainer: each rank's own rows of a generation, as they go into training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from align.core.rollout_record import RolloutRecord
from dumps.capture.describe import describe
from dumps.capture.plan import What
from dumps.capture.session import Session, append_line
from dumps.capture.step_batch import StepBatch, TextOf, decoder, files_of, wanted
from dumps.capture.wrap import After

_NAMES = {
    "old_per_token_logps": "old_log_probs",
    "ref_per_token_logps": "ref_log_prob",
    "sampling_per_token_logps": "rollout_log_probs",
}
_text_of: TextOf | None = None


def train(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """Describe the run as it begins, and finish writing at its end."""
    global _text_of
    rank = int(self.accelerator.process_index)
    tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
    _text_of = decoder(tokenizer) if session.takes(What.ROLLOUTS) else None
    if session.takes(What.CONFIG) and rank == 0:
        model = getattr(getattr(self.model, "config", None), "_name_or_path", None)
        describe(session, _name(rank), "trl", _yaml(self.args), model)

    def finish(result: Any) -> None:
        session.drain()

    return finish


def generated(session: Session, self: Any, *args: Any, **kwargs: Any) -> After | None:
    """Record what a generation gives; it is trained on in the optimizer steps that follow."""
    step, rank = int(self.state.global_step) + 1, int(self.accelerator.process_index)
    plan = session.plan
    if not self.model.training or not plan.takes_step(step) or not plan.takes_rank(rank):
        return None

    def after(output: Any) -> None:
        tensors = _tensors(output)
        kept = {name: tensor for name, tensor in tensors.items() if name in wanted(plan)}
        batch = StepBatch(step, _records(step, output), kept, _text_of)
        session.writer(_name(rank)).submit(step, lambda: files_of(batch, plan, rank))
        session.note_time(_name(rank), step)

    return after


def log(session: Session, self: Any, logs: Any, *args: Any, **kwargs: Any) -> After | None:
    """Append what the first rank logs, under TRL's names."""
    if not session.takes(What.METRICS) or int(self.accelerator.process_index) != 0:
        return None

    def after(result: Any) -> None:
        values = {name: v for name, v in logs.items() if isinstance(v, int | float)}
        line = {"step": int(self.state.global_step), "data": values}
        append_line(session.plan.run / "metrics.jsonl", line)

    return after


def _tensors(output: Any) -> dict[str, Any]:
    """Return the batch under verl's names; advantages are one a row, so one a token is made."""
    import torch

    prompt, response = output["prompt_ids"], output["completion_ids"]
    attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    mask = output.get("tool_mask", output["completion_mask"]) * output["completion_mask"]
    advantages = output["advantages"]
    if advantages.ndim == 1:
        advantages = advantages[:, None] * mask
    renamed = {ours: output[name] for name, ours in _NAMES.items() if output.get(name) is not None}
    return {
        **renamed,
        "input_ids": torch.cat([prompt, response], dim=1),
        "attention_mask": attention,
        "responses": response,
        "response_mask": mask,
        "advantages": advantages,
    }


def _records(step: int, output: Any) -> list[RolloutRecord]:
    log_probs = output.get("sampling_per_token_logps")
    rows = zip(
        _ids(output["prompt_ids"], output["prompt_mask"]),
        _ids(output["completion_ids"], output["completion_mask"]),
        strict=True,
    )
    return [
        RolloutRecord(
            prompt_ids=prompt,
            response_ids=response,
            log_probs=None if log_probs is None else tuple(log_probs[i, : len(response)].tolist()),
            step=step,
        )
        for i, (prompt, response) in enumerate(rows)
    ]


def _ids(ids: Any, mask: Any) -> Sequence[tuple[int, ...]]:
    kept = mask != 0
    return [tuple(row[seen].tolist()) for row, seen in zip(ids.cpu(), kept.cpu(), strict=True)]


def _name(rank: int) -> str:
    return f"trl-{rank}"


def _yaml(arguments: Any) -> str:
    from omegaconf import OmegaConf

    plain = {
        name: value
        for name, value in arguments.to_dict().items()
        if isinstance(value, str | int | float | bool | None)
    }
    return str(OmegaConf.to_yaml(OmegaConf.create(plain)))
