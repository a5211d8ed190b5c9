"""What sketches add to a training step: bare and sketched steps by turns, in one process.

    python -m benchmarks.sketch_cost [--steps 10] [--threads 1]

The model is that of msprobe's harness (Qwen2, 8 layers of 512 features, 512 tokens, random
weights). By turns, so that other work on the machine, which comes and goes, falls on both alike.
"Plain sums" is the least that a capture of outputs and their gradients can do with torch's
operators: extremes, norm and one product with signs a tensor, no keys, no parameters, no files.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.sketch_adapter import Sketches
from dumps.capture.sketch.hash import SIDE


def main() -> None:
    """Print one row for each kind of step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="of each kind")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, ids = harness_model()
    with tempfile.TemporaryDirectory() as folder:
        sketches = Sketches(folder, "L0", "statistics")

        def sketched() -> None:
            sketches.start(model)
            step(model, ids)
            sketches.stop()

        kinds = {
            "bare": lambda: step(model, ids),
            "plain sums": lambda: plainly_summed(model, ids),
            "sketched": sketched,
        }
        seconds = by_turns(kinds, arguments.steps)
    bare = seconds["bare"]
    print(f"{arguments.threads} threads, load average {os.getloadavg()[0]:.0f}\n")
    print("| step | s | processor s | times bare | the least of each |\n|---|---|---|---|---|")
    for name, runs in seconds.items():
        wall, processor = (statistics.median(kind) for kind in zip(*runs, strict=True))
        ratio = processor / statistics.median(run[1] for run in bare)
        least = min(run[1] for run in runs) / min(run[1] for run in bare)
        print(f"| {name} | {wall:.3f} | {processor:.3f} | {ratio:.2f} | {least:.2f} |")


def harness_model() -> tuple[nn.Module, Tensor]:
    """Return the model, and ids int64 [2, 256]."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(1234)
    config = Qwen2Config(
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1408,
        vocab_size=4096,
        max_position_embeddings=1024,
        use_cache=False,
        tie_word_embeddings=False,
    )
    return Qwen2ForCausalLM(config).train(), torch.randint(0, 4096, (2, 256))


def step(model: nn.Module, ids: Tensor) -> None:
    """Compute the gradients of a batch."""
    model.zero_grad(set_to_none=True)
    model(input_ids=ids, labels=ids).loss.backward()


def plainly_summed(model: nn.Module, ids: Tensor) -> None:
    """Compute the gradients of a batch, and sums of every module's output and its gradient."""
    rows = torch.randint(0, 2, (SIDE, ids.numel())).float() * 2 - 1
    columns: dict[int, Tensor] = {}
    kept: list[tuple[Tensor, ...]] = []

    def keep(tensor: Tensor) -> None:
        flat = tensor.detach().flatten(0, -2)
        width = flat.shape[1]
        if width not in columns:
            signs = torch.randint(0, 2, (width, SIDE)).float() * 2 - 1
            columns[width] = torch.cat([signs, torch.ones(width, 1)], 1)
        product = rows[:, : len(flat)] @ (flat @ columns[width])
        kept.append((*torch.aminmax(flat), torch.linalg.vector_norm(flat), product))

    def hook(module: nn.Module, args: object, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        if isinstance(tensor, Tensor):
            keep(tensor)
            if tensor.requires_grad:
                tensor.register_hook(keep)

    handles = [m.register_forward_hook(hook) for name, m in model.named_modules() if name]
    step(model, ids)
    for handle in handles:
        handle.remove()


def by_turns(
    kinds: dict[str, Callable[[], None]], count: int
) -> dict[str, list[tuple[float, float]]]:
    """Return wall and processor seconds of each run, after one of each kind to warm up."""
    for work in kinds.values():
        work()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(count):
        for name, work in kinds.items():
            wall, processor = time.perf_counter(), time.process_time()
            work()
            seconds[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return seconds


if __name__ == "__main__":
    main()
