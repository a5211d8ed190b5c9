"""Dump and compare the planted faults with msprobe; run by msprobe's own interpreter.

    PYTHON -m benchmarks.layer_fault_msprobe WORK LEVEL DTYPE

Prints one JSON document: for each fault the first row that is not "pass" and how many there are.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.layer_fault_models import Planted, batch, candidate, planted_faults, train_step

SEED = 1
CLEAN = "clean twin"


def main() -> None:
    """Dump every model as one step of one debugger, then compare each with its reference."""
    work, level, dtype = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    # rows of API calls are paired by their number, which another way to sum would shift: there the
    # candidate computes on the same device, without noise
    profiles = (dtype, f"{dtype}_split_k" if level == "L0" else dtype)
    debugger = _debugger(work, level)
    chosen = [Planted(CLEAN, ""), *planted_faults()]
    names = [each.name for each in chosen if dtype == "float32" or each.in_bfloat16]
    faults = {each.name: each for each in chosen if each.name in names}
    steps: dict[Any, int] = {}
    for architecture, is_packed in {(f.architecture, f.is_packed): 0 for f in faults.values()}:
        plain = Planted("", "", is_packed=is_packed, architecture=architecture)
        steps[architecture, is_packed] = _dump(debugger, plain, profiles[0], len(steps))
    for name, planted in faults.items():
        steps[name] = _dump(debugger, planted, profiles[1], len(steps))
    found = {}
    for name, planted in faults.items():
        golden = steps[planted.architecture, planted.is_packed]
        found[name] = _compared(work, steps[name], golden)
    print("RESULT " + json.dumps(found))


def _debugger(work: Path, level: str) -> Any:
    from msprobe.pytorch import PrecisionDebugger

    tensor = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {
        "task": "tensor",
        "dump_path": str(work),
        "rank": [],
        "step": [],
        "level": level,
        "async_dump": False,
        "extra_info": True,
        "tensor": tensor,
    }
    path = work / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return PrecisionDebugger(config_path=str(path))


def _dump(debugger: Any, planted: Planted, profile: str, step: int) -> int:
    model = candidate(planted, SEED, profile)
    inputs = batch(1, is_packed=planted.is_packed)
    debugger.start(model=model, rank_id=0)
    train_step(model, inputs, planted.scale)
    debugger.stop()
    debugger.step()
    return step


def _compared(work: Path, target: int, golden: int) -> dict[str, Any]:
    from msprobe.pytorch.compare.pt_compare import pt_compare

    out = work / f"compared_{target}"
    files = [str(work / f"step{step}" / "rank0" / "dump.json") for step in (target, golden)]
    given = {"npu_path": files[0], "bench_path": files[1], "is_print_compare_log": False}
    pt_compare(given, str(out))
    with next(out.glob("*.csv")).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    failed = [row["NPU Name"] for row in rows if row["Result"] != "pass"]
    return {"first": failed[0] if failed else None, "failed": len(failed), "rows": len(rows)}


if __name__ == "__main__":
    main()
