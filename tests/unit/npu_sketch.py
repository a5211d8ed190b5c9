"""Sketch a step of the tiny model on the `npu_on_cpu` device: run as ``python -m``, FOLDER."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from dumps.capture.describe import device_kind
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.hash import signs, splitmix64
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_gradients
from tests.unit import npu_on_cpu
from tests.unit.layer_runs import batch, loss_of, tiny_qwen2

KEYS = [0, 1, -1, 2**63 - 1, -(2**63), 1234567]


def main(folder: Path) -> None:
    """Write the capture, and print what the test asks for."""
    model, inputs = tiny_qwen2(), batch()
    npu_on_cpu.install()
    model.to(npu_on_cpu.NAME)
    given = {name: tensor.to(npu_on_cpu.NAME) for name, tensor in inputs.items()}
    products, gradients = [], []
    for is_on in (False, True):
        npu_on_cpu.Matmul.reduced = 0
        model.zero_grad(set_to_none=True)
        context = sketched_step(model, folder, 1, FailureLog(folder, "test"))
        with context if is_on else nullcontext() as recorder:
            loss_of(model, given).backward()
            if recorder is not None:
                record_gradients(recorder, model)
        products.append(npu_on_cpu.Matmul.reduced)
        gradients.append([p.grad.cpu() for p in model.parameters()])
    keys = torch.tensor(KEYS).to(npu_on_cpu.NAME)
    found = {
        "device": device_kind(),
        "products_with_hf32": products,
        "hf32_after": npu_on_cpu.Matmul.allow_hf32,
        "same_gradients": all(map(torch.equal, *gradients)),
        "hashes": splitmix64(keys).cpu().tolist(),
        "signs": signs(keys, 2, 16).cpu().tolist(),
        "on_npu": keys.device.type,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
