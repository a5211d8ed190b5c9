"""TRL's GRPOTrainer: each rank's own rows of a generation, and the gradients of each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from align.core.rollout_record import RolloutRecord
from dumps.capture.describe import describe
from dumps.capture.device import copied
from dumps.capture.gradients import gradient_squares
from dumps.capture.plan import What
from dumps.capture.session import Session, append_line, timed
from dumps.capture.step_batch import StepBatch, TextOf, decoder, files_of, wanted
from dumps.capture.taps.trl_loss import look_at_log_probs, look_away, taken_record
from dumps.capture.taps.trl_sketches import gradients_whole
from dumps.capture.update_record import UpdateRecord, step_file, writes
from dumps.capture.wrap import After, wrap
from dumps.capture.writer import WriteFile

_NAMES = {
    "old_per_token_logps": "old_log_probs",
    "ref_per_token_logps": "ref_log_prob",
    "sampling_per_token_logps": "rollout_log_probs",
}
_GENERATE = "_generate"  # 0.24 and later; gives (prompt ids, completion ids, …) of this rank
_text_of: TextOf | None = None
_LISTS = ("loss_type", "loss_weights")  # of DPOConfig

Ids = tuple[int, ...]


@dataclass
class _Step:
    """The optimizer step in progress.

    Args:
        rewards: what each reward function gave each row of every rank, [rows, functions].
        sampled: prompts and completions as generation gave them; empty where it is not seen.
        files: of the generation that begins with this step, by path.
    """

    rewards: Any = None
    sampled: list[tuple[Ids, Ids]] = field(default_factory=list)
    files: dict[str, WriteFile] = field(default_factory=dict)


_now = _Step()


def train(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """Describe the run as it begins, and finish writing at its end."""
    global _text_of
    rank = int(self.accelerator.process_index)
    tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
    _text_of = decoder(tokenizer) if session.takes(What.ROLLOUTS) else None
    if session.takes(What.CONFIG) and rank == 0:
        model = getattr(getattr(self.model, "config", None), "_name_or_path", None)
        describe(session, part_name(rank), "trl", _yaml(self.args), model)
    look_at_log_probs(session, self)
    if session.takes(What.ROLLOUTS) and hasattr(self, _GENERATE):
        tap = timed(session, _sampled)
        wrap(self, _GENERATE, f"GRPOTrainer.{_GENERATE}", tap, session.log)

    def finish(result: Any) -> None:
        look_away(self)
        vars(self).pop(_GENERATE, None)
        session.drain()

    return finish


def generated(session: Session, self: Any, *args: Any, **kwargs: Any) -> After | None:
    """Record what a generation gives; it is trained on in the optimizer steps that follow."""
    step, rank = int(self.state.global_step) + 1, int(self.accelerator.process_index)
    plan = session.plan
    if not self.model.training or not plan.takes_step(step) or not plan.takes_rank(rank):
        return None

    def after(output: Any) -> None:
        records = _records(self, step, output)
        tensors = _tensors(output)
        tensors |= _rewards(self, records, tensors["response_mask"])
        kept = {name: tensor for name, tensor in tensors.items() if name in wanted(plan)}
        batch = StepBatch(step, records, kept, _text_of)
        _now.files.update(files_of(batch, plan, rank))

    return after


def _sampled(session: Session, *args: Any, **kwargs: Any) -> After:
    """Keep what generation gives, before it is laid out for training."""

    def after(result: Any) -> None:
        prompts, completions = result[:2]
        _now.sampled = [
            (tuple(map(int, prompt)), tuple(map(int, completion)))
            for prompt, completion in zip(prompts, completions, strict=True)
        ]

    return after


def rewarded(session: Session, self: Any, *args: Any, **kwargs: Any) -> After | None:
    """Keep the rewards of the generation in progress, which its output does not have."""
    if not self.model.training or not session.takes(What.ROLLOUTS, What.LOG_PROBS):
        return None

    def after(result: Any) -> None:
        _now.rewards = result

    return after


def trained(session: Session, self: Any, model: Any, *args: Any, **kwargs: Any) -> After:
    """End an optimizer step once its gradients are whole, before they are clipped."""

    def after(result: Any) -> None:
        if not self.accelerator.sync_gradients:
            return  # another micro-batch follows
        step, rank = int(self.state.global_step) + 1, int(self.accelerator.process_index)
        files = {**_now.files}
        _now.files.clear()
        record = taken_record()
        keep_gradients(session, self, record, model)
        if record.tensors:
            tensors = copied(record.tensors)
            notes = record.notes(step, rank, "actor", losses_add_up=True)
            files[step_file(step, f"actor-{rank}")] = writes(tensors, notes)
        if files:
            session.writer(part_name(rank)).submit(step, lambda: files)
        gradients_whole(session, self, model, step, rank)
        session.note_time(part_name(rank), step)

    return after


def keep_gradients(session: Session, trainer: Any, record: UpdateRecord, model: Any) -> None:
    """Keep squared sums of the gradients of the step that ends, where the plan takes them."""
    step, rank = int(trainer.state.global_step) + 1, int(trainer.accelerator.process_index)
    scaler = getattr(trainer.accelerator, "scaler", None)  # of fp16: gradients are multiplied
    if not session.takes(What.GRAD_NORMS) or scaler is not None:
        return
    if not session.plan.takes_step(step) or not session.plan.takes_rank(rank):
        return
    names, squares = gradient_squares(model.named_parameters())
    if names:  # DeepSpeed keeps them elsewhere
        record.keep_rows("update.0.gradient_squares", names, squares)


def log(session: Session, self: Any, logs: Any, *args: Any, **kwargs: Any) -> After | None:
    """Append what the first rank logs, under TRL's names."""
    if not session.takes(What.METRICS) or int(self.accelerator.process_index) != 0:
        return None

    def after(result: Any) -> None:
        values = {name: v for name, v in logs.items() if isinstance(v, int | float)}
        if "train_runtime" in values:
            values.pop("epoch", None)  # the summary at the end says it once more
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


def _rewards(trainer: Any, records: Sequence[RolloutRecord], mask: Any) -> dict[str, Any]:
    """Return each row's score at its last token, as verl has it.

    None where a row has no score, or where this rank holds a part of a prompt's responses alone:
    their advantages are of rows that it does not hold.
    """
    scores = [record.score for record in records]
    if any(score is None for score in scores) or len(scores) % int(trainer.num_generations):
        return {}
    last = (mask != 0).cumsum(dim=1).argmax(dim=1)
    rewards = mask.new_zeros(mask.shape).float()
    rewards.scatter_(1, last[:, None], rewards.new_tensor(scores)[:, None])
    return {"token_level_scores": rewards, "token_level_rewards": rewards}


def _records(trainer: Any, step: int, output: Any) -> list[RolloutRecord]:
    log_probs = output.get("sampling_per_token_logps")
    count = len(output["completion_ids"])
    scores, by_function = _scores(trainer, count)
    ended = _ends(trainer)
    return [
        RolloutRecord(
            prompt_ids=prompt,
            response_ids=response,
            log_probs=None if log_probs is None else tuple(log_probs[i, : len(response)].tolist()),
            step=step,
            score=scores[i],
            finish_reason="stop" if response and response[-1] in ended else "length",
            extras=by_function[i],
        )
        for i, (prompt, response) in enumerate(_rows(trainer, output))
    ]


def _rows(trainer: Any, output: Any) -> list[tuple[Ids, Ids]]:
    """Return ids of prompts and completions, as they were sampled where that is known.

    Completions that are masked whole, as they were cut, are left out of training by intent.
    """
    sampled, _now.sampled = _now.sampled, []
    masked = getattr(trainer, "mask_truncated_completions", False)
    if len(sampled) == len(output["completion_ids"]) and not masked:
        return sampled
    prompts = _ids(output["prompt_ids"], output["prompt_mask"])
    completions = _ids(output["completion_ids"], output["completion_mask"])
    return list(zip(prompts, completions, strict=True))


def _scores(trainer: Any, count: int) -> tuple[list[float | None], list[dict[str, float | None]]]:
    """Return this rank's weighted rewards, and those by function; None where none applies.

    Source: TRL `_generate_and_score_completions`, "sum_then_normalize".
    """
    given, _now.rewards = _now.rewards, None
    if given is None:
        return [None] * count, [{}] * count
    start = int(trainer.accelerator.process_index) * count
    rows = given[start : start + count].tolist()
    weights = trainer.reward_weights.tolist()
    names = [f"score/{name}" for name in trainer.reward_func_names]
    plain = [[None if math.isnan(value) else value for value in row] for row in rows]
    totals = [
        sum(w * v for w, v in zip(weights, row, strict=True) if v is not None)
        if any(v is not None for v in row)
        else None
        for row in plain
    ]
    return totals, [dict(zip(names, row, strict=True)) for row in plain]


def _ends(trainer: Any) -> frozenset[int]:
    """Return the ids that end a completion; TRL's own count of the cut ones takes padding for one.

    Padding that is sampled last, at the greatest length, ends nothing.
    """
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    ids = getattr(trainer, "eos_token_ids", None) or [tokenizer.eos_token_id]
    return frozenset(i for i in ids if i is not None)


def _ids(ids: Any, mask: Any) -> Sequence[tuple[int, ...]]:
    kept = mask != 0
    return [tuple(row[seen].tolist()) for row, seen in zip(ids.cpu(), kept.cpu(), strict=True)]


def part_name(rank: int) -> str:
    """Return what a rank's writer is called."""
    return f"trl-{rank}"


def _yaml(arguments: Any) -> str:
    from omegaconf import OmegaConf

    plain = {
        name: value
        for name, value in arguments.to_dict().items()
        if isinstance(value, str | int | float | bool | None)
        or (name in _LISTS and isinstance(value, list))
    }
    return str(OmegaConf.to_yaml(OmegaConf.create(plain)))
