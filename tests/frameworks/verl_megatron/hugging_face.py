"""The same training step in transformers, sketched: what verl's Megatron engine must agree with."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from dumps.capture.device import copied
from dumps.capture.failures import FailureLog
from dumps.capture.step_sketches import StepSketches
from tests.frameworks.verl_megatron.batch import (
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    LENGTHS,
    OLD_LOG_PROBS,
    PROMPT,
    advantages,
    old_log_probs,
    sequences,
)


def record(source: Path, folder: Path, step: int) -> None:
    """Sketch one training step of a saved model, and the weights that it begins with."""
    model = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, eps=EPSILON)
    sketches = StepSketches(FailureLog(folder, "test"))
    sketches.record_sync(model, torch.float32)
    write(sketches, folder, step - 1)
    sketches.begin(model, None)
    loss_of(model, source).backward()
    after = sketches.update(model, optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    after()
    write(sketches, folder, step)


def write(sketches: StepSketches, folder: Path, step: int) -> None:
    for part in sketches.end(step, 0):
        for name, write_file in part.writes(copied(part.tensors())).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(folder / name)


def save_old_log_probs(folder: Path) -> None:
    """Save log_probs near the model's, so that no ratio is clipped."""
    generator = torch.Generator().manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        near = [own + 0.05 * torch.randn(len(own), generator=generator) for own in log_probs(model)]
    torch.save(near, folder / OLD_LOG_PROBS)


def log_probs(model: PreTrainedModel) -> list[Tensor]:
    """Return float32 [response length] a sequence."""
    ids = torch.nn.utils.rnn.pad_sequence(sequences(), batch_first=True)
    attended = torch.arange(ids.shape[1]) < torch.tensor(LENGTHS)[:, None]
    places = torch.arange(ids.shape[1]).expand_as(ids)
    logits = model(ids, attention_mask=attended.long(), position_ids=places).logits
    found = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return [row[PROMPT - 1 : length - 1] for row, length in zip(found, LENGTHS, strict=True)]


def loss_of(model: PreTrainedModel, folder: Path) -> Tensor:
    """Return the policy loss where no ratio is clipped, averaged over tokens."""
    of_rows = zip(log_probs(model), old_log_probs(folder), advantages(), strict=True)
    return -torch.cat([(new - old).exp() * advantage for new, old, advantage in of_rows]).mean()
