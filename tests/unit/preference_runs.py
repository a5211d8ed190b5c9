"""Tiny run folders of DPO whose recorded losses are plain arithmetic on Python numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dumps.capture.update_record import UpdateRecord, step_file, writes
from dumps.store.discover import discover
from dumps.store.run_data import RunData

CONFIG = """\
per_device_train_batch_size: 2
precompute_ref_log_probs: false
f_divergence_type: {divergence}
label_smoothing: 0.0
sync_ref_model: {syncs}
loss_type: [{loss_type}]
beta: 0.1
num_train_epochs: 1.0
"""
PROMPT = (5, 6, 7)
Numbers = tuple[float, ...]
Loss = Callable[["Drawn"], float]


@dataclass(frozen=True)
class Drawn:
    """One pair: ids of both responses, and what both models give their tokens."""

    number: int
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    policy: tuple[Numbers, Numbers]
    reference: tuple[Numbers, Numbers]

    @property
    def margin(self) -> float:
        """(chosen - rejected) of the policy's sums less the reference's."""
        policy, reference = ([sum(part) for part in m] for m in (self.policy, self.reference))
        return policy[0] - policy[1] - (reference[0] - reference[1])

    @property
    def policy_margin(self) -> float:
        """The same without a reference."""
        return sum(self.policy[0]) - sum(self.policy[1])


def logistic(strength: float) -> float:
    """-log σ of it."""
    return math.log1p(math.exp(-strength))


def declared(pair: Drawn) -> float:
    return logistic(0.1 * pair.margin)


def pairs(step: int, count: int = 4) -> list[Drawn]:
    """Draw a step's pairs; in the first step the policy is the reference."""
    draw = torch.Generator().manual_seed(step)
    found = []
    for number in range(step * 10, step * 10 + count):
        lengths = (1 + number % 3, 2 + number % 4)

        def numbers(length: int) -> Numbers:
            return tuple((-3 * torch.rand(length, generator=draw)).tolist())

        reference = (numbers(lengths[0]), numbers(lengths[1]))
        policy = reference
        if step > 1:
            policy = (numbers(lengths[0]), numbers(lengths[1]))
        ids = [tuple(range(number, number + length)) for length in lengths]
        found.append(Drawn(number, ids[0], ids[1], policy, reference))
    return found


@dataclass(frozen=True)
class Made:
    """How a run is made.

    Args:
        loss: of a pair.
        factor: of a micro-batch's mean.
        steps: the pairs of each step, by number.
        micro: pairs of a micro-batch.
        padding: ids added on the right.
        precomputed: reference's sums alone are kept.
        norm: of the gradients of each step.
    """

    loss: Loss = declared
    factor: float = 1.0
    steps: Mapping[int, Sequence[Drawn]] = field(
        default_factory=lambda: {step: pairs(step) for step in (1, 2, 3)}
    )
    micro: int = 4
    padding: int = 0
    precomputed: bool = False
    norm: float = 2.0
    has_reference: bool = True
    loss_type: str = "sigmoid"
    divergence: str = "reverse_kl"
    syncs: bool = False

    def run(self, folder: Path) -> RunData:
        """Write the run, and return it."""
        folder.mkdir(parents=True)
        settings = CONFIG.format(
            loss_type=self.loss_type, divergence=self.divergence, syncs=self.syncs
        )
        (folder / "config.yaml").write_text(settings)
        stated = {"schema_version": 1, "framework": "trl", "framework_version": "1.16.0"}
        (folder / "align-run.json").write_text(json.dumps(stated))
        for step, drawn in self.steps.items():
            record = UpdateRecord()
            for start in range(0, len(drawn), self.micro):
                record.begin_micro_batch()
                record.keep(self._micro(drawn[start : start + self.micro]))
            squares = torch.tensor([self.norm**2 / 4, 3 * self.norm**2 / 4])
            record.keep_rows("update.0.gradient_squares", ["a.weight", "b.weight"], squares)
            path = folder / step_file(step, "preference-0")
            path.parent.mkdir(parents=True)
            writes(record.to_host(), record.notes(step, 0, "preference"))(path)
        return RunData(discover([folder]))

    def _micro(self, drawn: Sequence[Drawn]) -> dict[str, Any]:
        rows = [(PROMPT + p.chosen, p.policy[0], p.reference[0]) for p in drawn]
        rows += [(PROMPT + p.rejected, p.policy[1], p.reference[1]) for p in drawn]
        width = max(len(ids) for ids, _, _ in rows) + self.padding
        before = (0.0,) * (len(PROMPT) - 1)
        reference: dict[str, Any] = {
            "ref_log_prob": _padded([before + ref for _, _, ref in rows], width - 1)
        }
        if self.precomputed:
            reference = {"ref_sequence_log_probs": torch.tensor([sum(ref) for _, _, ref in rows])}
        loss = self.factor * sum(map(self.loss, drawn)) / len(drawn)
        return {
            "input_ids": _padded([ids for ids, _, _ in rows], width).long(),
            "attention_mask": _padded([(1,) * len(ids) for ids, _, _ in rows], width).long(),
            "response_mask": _padded(
                [(0,) * len(PROMPT) + (1,) * len(policy) for _, policy, _ in rows], width
            ).long(),
            "log_probs": _padded([before + policy for _, policy, _ in rows], width - 1),
            "preference_loss": torch.tensor(loss),
            **(reference if self.has_reference else {}),
        }


def _padded(rows: Sequence[Sequence[float]], width: int) -> torch.Tensor:
    return torch.tensor([[*row, *([0] * (width - len(row)))] for row in rows], dtype=torch.float32)
