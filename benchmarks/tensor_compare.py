"""How fast tensors and whole msprobe dumps are compared; beside msprobe with --msprobe.

    python benchmarks/tensor_compare.py [--mb 512] [--dumps REF CAND] [--msprobe PYTHON]

Two tables: exact comparison in GB/s of both sides together, wall clock and per processor second
(the second is the steadier one on a busy machine); and start to verdict of `align layers diff` on a
pair of dumps, made here where --dumps names none: 675 tensors a side as of level L0, in float32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from align.layers.exact import Values, exact_differences

_LAYERS, _TOKENS, _HIDDEN = 56, 512, 512
_REPEATS = 3


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=512, help="of one side")
    parser.add_argument("--dumps", nargs=2, type=Path, metavar=("REF", "CAND"))
    parser.add_argument("--msprobe", type=Path, help="a Python that has mindstudio-probe")
    arguments = parser.parse_args()
    print("| tensors | threads | GB/s | GB a processor second |\n|---|---|---|---|")
    for name, pair in _pairs(arguments.mb << 18).items():
        for workers in (1, 2):
            wall, processor, size = _timed(partial(_compare, pair, workers))
            print(f"| {name} | {workers} | {size / wall:.2f} | {size / processor:.2f} |")
    with tempfile.TemporaryDirectory() as folder:
        dumps = arguments.dumps or _dumps(Path(folder))
        print("\n| start to verdict | s | processor s | exit code |\n|---|---|---|---|")
        align = str(Path(sys.executable).with_name("align"))
        ours = [align, "layers", "diff", *map(str, dumps)]
        _report("align layers diff", ours)
        if arguments.msprobe:
            files = [str(next(path.glob("step*/*/dump.json"))) for path in dumps]
            tool = str(arguments.msprobe.with_name("msprobe"))
            out = str(Path(folder, "msprobe"))
            theirs = [tool, "compare", "-tp", files[1], "-gp", files[0], "-o", out]
            _report("msprobe compare", theirs)


def _pairs(count: int) -> dict[str, tuple[Values, Values]]:
    """Return float32 and bfloat16 tensors that differ everywhere, and equal ones."""
    generator = np.random.default_rng(0)
    one = generator.standard_normal(count, dtype=np.float32)
    other = one + np.float32(1e-6) * generator.standard_normal(count, dtype=np.float32)
    bits, near = ((array.view(np.uint32) >> 16).astype(np.uint16) for array in (one, other))
    return {
        "float32, every number differs": (Values("float32", one), Values("float32", other)),
        "float32, equal": (Values("float32", one), Values("float32", one.copy())),
        "bfloat16": (Values("bfloat16", bits), Values("bfloat16", near)),
    }


def _compare(pair: tuple[Values, Values], workers: int) -> float:
    exact_differences([pair], workers=workers)
    return (pair[0].raw.nbytes + pair[1].raw.nbytes) / 1e9


def _timed(work: Callable[[], float]) -> tuple[float, float, float]:
    """Return the least wall and processor seconds of some runs, and what one returns."""
    walls, processors, size = [], [], 0.0
    for _ in range(_REPEATS):
        wall, processor = time.perf_counter(), time.process_time()
        size = work()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return min(walls), min(processors), size


def _report(name: str, command: list[str]) -> None:
    runs = []
    for _ in range(_REPEATS):
        before, start = _children(), time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=False)
        runs.append((time.perf_counter() - start, _children() - before, done.returncode))
    wall, processor, code = min(runs)
    print(f"| {name} | {wall:.2f} | {processor:.2f} | {code} |")


def _children() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _dumps(folder: Path) -> tuple[Path, Path]:
    """Write two dumps of a chain of linear modules; one number of one output differs."""
    import torch

    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(_TOKENS, _HIDDEN, generator=generator) for _ in range(8)]
    for name in ("reference", "candidate"):
        data: dict[str, Any] = {}
        place = folder / name / "step0" / "rank0"
        (place / "dump_tensor_data").mkdir(parents=True)
        for layer in range(_LAYERS):
            for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
                key = f"Module.model.layers.{layer}.self_attn.{part}.Linear.forward.0"
                own = [values[(layer + i) % len(values)] for i in range(3)]
                if name == "candidate" and (layer, part) == (30, "o_proj"):
                    own[1] = own[1] * 1.001
                data[key] = {
                    "input_args": [_leaf(place, f"{key}.input.0", own[0])],
                    "output": [_leaf(place, f"{key}.output.0", own[1])],
                    "parameters": {"weight": _leaf(place, f"{key}.parameters.weight", own[2])},
                }
        head = {"task": "tensor", "level": "L0", "framework": "pytorch", "dump_data_dir": None}
        (place / "dump.json").write_text(json.dumps({**head, "data": data}))
        (place / "construct.json").write_text(json.dumps(dict.fromkeys(data)))
        (place / "stack.json").write_text(json.dumps({"0": [list(data), ["File a, line 1"]]}))
    return folder / "reference", folder / "candidate"


def _leaf(place: Path, name: str, tensor: Any) -> dict[str, Any]:
    import torch

    torch.save(tensor, place / "dump_tensor_data" / f"{name}.pt")
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(tensor.shape),
        "Max": tensor.max().item(),
        "Min": tensor.min().item(),
        "Mean": tensor.mean().item(),
        "Norm": tensor.norm().item(),
        "requires_grad": True,
        "data_name": f"{name}.pt",
    }


if __name__ == "__main__":
    main()
