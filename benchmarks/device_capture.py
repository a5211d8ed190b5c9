"""What a sketch capture costs on an accelerator, and how far that device is from this CPU.

    python -m benchmarks.device_capture
    python -m benchmarks.device_capture --device cpu --tiny

A Qwen2.5-7B-shaped model of two layers in bfloat16, forward and backward: bare steps and captured
ones in turn, then one captured step on the CPU from the same weights and ids. Less than five
minutes on one device; says so and does nothing where there is none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.capture.device import accelerator
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_gradients
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase

# Source: config.json of Qwen/Qwen2.5-7B, but for the number of layers.
QWEN2_5_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "num_hidden_layers": 2,
}
TINY = {
    **QWEN2_5_7B,
    "hidden_size": 112,
    "intermediate_size": 96,
    "vocab_size": 512,
}
NUM_STEPS = 10
PHASES = (Phase.FORWARD, Phase.INPUT, Phase.GRADIENT, Phase.PARAMETER_GRADIENT)


def main() -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=accelerator(), help="cuda, npu or cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try this out")
    parser.add_argument("--tokens", type=int, default=4096, help="of a step on the device")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.device is None:
        print("skipped: this machine has no accelerator", file=sys.stderr)
        return 0
    tokens = 64 if args.tiny else args.tokens
    model, ids = built(TINY if args.tiny else QWEN2_5_7B, tokens)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(model, ids, torch.device(args.device), Path(folder))
    print(json.dumps(found, indent=1) if args.json else as_table(found))
    return 0


def built(sizes: dict[str, Any], tokens: int) -> tuple[nn.Module, Tensor]:
    """Return a model of fixed weights in bfloat16 on the CPU, and ids [2, tokens / 2]."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(**sizes, use_cache=False, tie_word_embeddings=False)
    model: nn.Module = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).train()
    return model, torch.randint(0, sizes["vocab_size"], (2, tokens // 2))


def measured(model: nn.Module, ids: Tensor, device: torch.device, folder: Path) -> dict[str, Any]:
    """Return cost and floor.

    Args:
        folder: an empty one, for captures.
    """
    short = ids[:, :128]  # what a CPU gets through in bfloat16
    on_cpu = _captured(model, short, folder / "cpu")
    model.to(device)
    on_device = _captured(model, short.to(device), folder / "device")
    return {
        "device": _name(device),
        "torch": torch.__version__,
        "tokens": ids.numel(),
        **_cost(model, ids.to(device), device, folder / "cost"),
        "floor": {phase: _floor(on_device, on_cpu, phase) for phase in PHASES},
    }


def as_table(found: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    rows = [f"| {name} | {value} |" for name, value in found.items() if name != "floor"]
    lines = ["| | |", "|---|---|", *rows, ""]
    lines += ["| phase | addresses | median error | largest | at |", "|---|---|---|---|---|"]
    for phase, floor in found["floor"].items():
        lines.append(
            f"| {phase} | {floor['addresses']} | {floor['median']:.2e} | {floor['largest']:.2e}"
            f" | {floor['at']} |"
        )
    return "\n".join(lines)


def _cost(model: nn.Module, ids: Tensor, device: torch.device, folder: Path) -> dict[str, Any]:
    """Time bare and captured steps in turn, so that what slows the machine slows both."""
    bare, captured, step_bytes = [], [], 0

    def capture(step: int) -> Callable[[], None]:
        return lambda: _step(model, ids, folder, step)

    for step in range(2):
        _timed(lambda: _step(model, ids), device)
        _timed(capture(step), device)
    peak_bare = peak_captured = 0
    for step in range(2, NUM_STEPS + 2):
        seconds, peak = _timed(lambda: _step(model, ids), device)
        bare.append(seconds)
        peak_bare = max(peak_bare, peak)
        seconds, peak = _timed(capture(step), device)
        captured.append(seconds)
        peak_captured = max(peak_captured, peak)
    step_bytes = max(path.stat().st_size for path in folder.rglob("*.safetensors"))
    return {
        "bare step, ms": round(statistics.median(bare) * 1e3, 3),
        "captured step, ms": round(statistics.median(captured) * 1e3, 3),
        "ratio": round(statistics.median(captured) / statistics.median(bare), 3),
        "device memory over the bare step, MB": round((peak_captured - peak_bare) / 1e6, 1),
        "written a step, MB": round(step_bytes / 1e6, 3),
    }


def _step(model: nn.Module, ids: Tensor, folder: Path | None = None, step: int = 0) -> None:
    model.zero_grad(set_to_none=True)
    log = FailureLog(folder or Path(), "benchmark")
    context = nullcontext() if folder is None else sketched_step(model, folder, step, log)
    with context as recorder:
        model(input_ids=ids, labels=ids).loss.backward()
        if recorder is not None:
            record_gradients(recorder, model)


def _captured(model: nn.Module, ids: Tensor, folder: Path) -> CapturedStep:
    _step(model, ids, folder, 1)
    return captured_steps(RunData(discover([folder])))[1]


def _timed(work: Callable[[], None], device: torch.device) -> tuple[float, int]:
    """Return seconds and the peak of the device's memory in bytes, 0 on a CPU."""
    module = None if device.type == "cpu" else torch.get_device_module(device)
    if module is not None:
        module.synchronize()
        module.reset_peak_memory_stats()
    begin = time.perf_counter()
    work()
    if module is not None:
        module.synchronize()
    seconds = time.perf_counter() - begin
    return seconds, 0 if module is None else module.max_memory_allocated()


def _floor(own: CapturedStep, other: CapturedStep, phase: str) -> dict[str, Any]:
    others = other.of(phase)
    errors = {
        address: difference(record, others[address]).relative
        for address, record in own.of(phase).items()
        if address in others
    }
    (name, _), largest = max(errors.items(), key=lambda item: item[1])
    median = statistics.median(errors.values())
    return {"addresses": len(errors), "median": median, "largest": largest, "at": name}


def _name(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    return str(torch.get_device_module(device).get_device_name())


if __name__ == "__main__":
    sys.exit(main())
