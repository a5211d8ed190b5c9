"""What one rank sees of a step: log_probs and loss of every micro-batch, gradients, modules.

All of it stays on the device, packed into one buffer and copied to the host once, at the end of the
step. One file a rank and step holds it:

    update.U.micro.M.NAME      tensors of micro-batch M of optimizer step U
    update.U.gradient_squares  squared sums by parameter, before clipping
    update.U.grad_norm         the norm that the framework reports
    modules                    statistics, a module output a row
    notes                      JSON as bytes, which names the rows
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumps.capture.device import copied
from dumps.capture.module_stats import ModuleOutput
from dumps.capture.rng import rng_hashes
from dumps.capture.step_batch import write_tensors
from dumps.capture.writer import WriteFile

VERSION = "1"


@dataclass
class UpdateRecord:
    """One rank's part of the step in progress.

    Args:
        tensors: by name, on the device.
        parameters: whose gradients are recorded, in the rows' order.
        module_rows: what each row of ``modules`` is.
        update: optimizer step within the training step, from 0.
        micro: micro-batch within the optimizer step, from 0; -1 before the first.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, list[str]] = field(default_factory=dict)
    module_rows: list[dict[str, object]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    rng: dict[str, str] = field(default_factory=dict)
    update: int = 0
    micro: int = -1

    def begin_micro_batch(self) -> None:
        """Count a micro-batch that is trained on."""
        self.micro += 1
        if not self.rng:
            self.rng = rng_hashes()

    def end_update(self) -> None:
        """Count an optimizer step."""
        self.update, self.micro = self.update + 1, -1

    def keep(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Keep tensors of the current micro-batch; copies, as training may write into its own."""
        for name, tensor in tensors.items():
            if tensor is not None:
                key = f"update.{self.update}.micro.{self.micro}.{name}"
                self.tensors[key] = tensor.detach().clone()

    def keep_norm(self, norm: object) -> None:
        """Keep the gradient norm that an optimizer step returns, as a number or a tensor."""
        if isinstance(norm, float | Tensor):
            self.tensors[f"update.{self.update}.grad_norm"] = torch.as_tensor(norm).detach()

    def keep_rows(self, name: str, parameters: list[str], rows: Tensor) -> None:
        """Keep one row a parameter."""
        self.tensors[name], self.parameters[name] = rows.detach(), parameters

    def keep_module(self, phase: str, output: ModuleOutput) -> None:
        """Keep a module's statistics."""
        self.outputs.append(output.values)
        self.module_rows.append(
            {
                "module": output.name,
                "phase": phase,
                "shape": list(output.shape),
                "dtype": output.dtype.removeprefix("torch."),
            }
        )

    def to_host(self) -> dict[str, Tensor]:
        """Return everything on the host, by one copy from the device."""
        return copied(self.on_device())

    def on_device(self) -> dict[str, Tensor]:
        """Return everything, still on the device, for `copied`."""
        tensors = dict(self.tensors)
        if self.outputs:
            tensors["modules"] = torch.stack(self.outputs)
        return tensors

    def notes(
        self, step: int, rank: int, role: str, *, losses_add_up: bool = False
    ) -> dict[str, object]:
        """Return what names the rows, to be stored beside the tensors.

        Args:
            losses_add_up: whether the framework divides each micro-batch's loss by what the whole
                update holds, so that their sum, averaged over ranks, is the update's.
        """
        return {
            "step": step,
            "rank": rank,
            "role": role,
            "rng_at_first_update": self.rng,
            "parameters": self.parameters,
            "modules": self.module_rows,
            "losses_add_up": losses_add_up,
        }


def step_file(step: int, name: str) -> str:
    """Return the path of a rank's part of a step, below the run folder."""
    return f"steps/{step:06d}/{name}.safetensors"


def writes(tensors: Mapping[str, Tensor], notes: Mapping[str, object]) -> WriteFile:
    """Return what writes a rank's part of a step.

    The notes are a tensor of bytes, ``notes``: the format's own metadata would come first in the
    file and hide by its length what kind of file it is.
    """
    text = torch.frombuffer(bytearray(json.dumps(notes).encode()), dtype=torch.uint8)
    return lambda path: write_tensors(path, {**tensors, "notes": text}, {"align_capture": VERSION})
