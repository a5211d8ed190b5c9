"""How fast sketches of every step are compared: a million records by default.

    python -m benchmarks.layer_records [--steps 1000] [--layers 28] [--keep FOLDER]

Writes two runs as a capture does, 18 addresses a layer and step, and compares all steps with
`align layers diff --all-steps`: wall clock, processor seconds of all processes, and the largest
memory of one of them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.token_keys import Tokens, tokens_of
from dumps.capture.sketch.write import stacked, write_file
from dumps.store.tensor_records import Phase, sketch_path

_MODULES: tuple[str, ...] = (
    "input_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    "post_attention_layernorm",
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_ROUNDING, _FAULT = 1e-7, 1e-2


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--keep", type=Path, help="write the runs here, or compare those here")
    parser.add_argument("--option", action="append", default=[], help="further ones of the command")
    arguments = parser.parse_args()
    temporary = tempfile.TemporaryDirectory() if arguments.keep is None else None
    with temporary or nullcontext(str(arguments.keep)) as place:
        folder = Path(place)
        if not (folder / "candidate").exists():
            write_runs(folder, arguments.steps, arguments.layers)
        align = str(Path(sys.executable).with_name("align"))
        command = [align, "layers", "diff", str(folder / "reference"), str(folder / "candidate")]
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "--all-steps", *arguments.option],
            capture_output=True,
            text=True,
            check=False,
        )
        wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    count = 2 * arguments.steps * arguments.layers * 2 * len(_MODULES)
    print(done.stdout[:400], done.stderr[-2000:], sep="\n", file=sys.stderr)
    print("| records | s | processor s | peak MB of a process | load | exit code |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {count:,} | {wall:.1f} | {used.ru_utime + used.ru_stime:.1f} | "
        f"{used.ru_maxrss // 1024} | {os.getloadavg()[0]:.1f} | {done.returncode} |"
    )


def write_runs(folder: Path, steps: int, layers: int) -> None:
    """Write two runs that differ by rounding, and from half of the steps on at one module."""
    recorder = Recorder()
    tokens = tokens_of(torch.arange(16).reshape(1, 16))
    for layer in range(layers):
        for module in _MODULES:
            _record(recorder, f"model.layers.{layer}.{module}", Phase.FORWARD, tokens)
    for layer in reversed(range(layers)):
        for module in reversed(_MODULES):
            _record(recorder, f"model.layers.{layer}.{module}", Phase.GRADIENT, tokens)
    base = stacked(recorder)
    faulty = list(recorder.sums).index(
        (f"model.layers.{layers // 2}.self_attn.o_proj", Phase.FORWARD, 0)
    )
    generator = torch.Generator().manual_seed(0)
    shape = base["sketch"].shape
    for step in range(1, steps + 1):
        own = {**base, "sketch": torch.randn(shape, generator=generator)}
        error = _ROUNDING * torch.randn(shape, generator=generator)
        if step > steps // 2:
            error[faulty] *= _FAULT / _ROUNDING
        other = {**own, "sketch": own["sketch"] + error}
        for name, tensors in (("reference", own), ("candidate", other)):
            path = sketch_path(folder / name, step, 0)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, tensors, step, 0, recorder)


def _record(recorder: Recorder, name: str, phase: str, tokens: Tokens) -> None:
    rows = torch.ones(16, 8)
    recorder.add_tokens(name, phase, rows, tokens, rows.shape)


if __name__ == "__main__":
    main()
