"""Write the sketches of one step and rank: one safetensors file, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.sums import SIDE
from dumps.capture.update_record import copied
from dumps.store.tensor_records import FORMAT, sketch_path

_STACKED = ("sketch", "moments", "counts")


def write_step(folder: Path, step: int, rank: int, recorder: Recorder) -> Path | None:
    """Copy the sketches to the host and write them; None where there are none.

    Args:
        folder: of the run.
    """
    if not recorder.sums:
        return None
    sums = list(recorder.sums.values())
    on_host = copied({name: torch.stack([getattr(s, name) for s in sums]) for name in _STACKED})
    sketches = on_host["sketch"]
    records = [
        [name, phase, update, one.order, one.dtype, list(one.shape), one.num_elements]
        for (name, phase, update), one in recorder.sums.items()
    ]
    tensors = {
        "sketch": (sketches[:, :SIDE, :SIDE] / SIDE).contiguous(),
        "total": sketches[:, SIDE, SIDE].contiguous(),
        "moments": on_host["moments"],
        "counts": on_host["counts"],
    }
    document = {
        "step": step,
        "rank": rank,
        "records": records,
        "unaligned": sorted(recorder.unaligned),
        "problems": sorted(recorder.problems),
        "facts": recorder.facts,
    }
    text = json.dumps(document, sort_keys=True).encode()
    tensors["document"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    path = sketch_path(folder, step, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    save_file(tensors, part, {"format": FORMAT})
    os.replace(part, path)
    return path
