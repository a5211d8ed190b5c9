"""Write the sketches of one step and rank: one safetensors file, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dumps.capture.device import start_copy
from dumps.capture.sketch.hash import SIDE
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.writer import WriteFile, Writer, write_whole
from dumps.store.tensor_records import FORMAT, sketch_path


def write_step(folder: Path, step: int, rank: int, recorder: Recorder) -> Path | None:
    """Copy the sketches to the host and write them; None where there are none.

    Args:
        folder: of the run.
    """
    if not recorder.sums:
        return None
    path = sketch_path(folder, step, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    write_file(part, start_copy(stacked(recorder))(), step, rank, recorder)
    os.replace(part, path)
    for name, write in whole_files(recorder, step, rank).items():
        write_whole(folder / name, write)
    return path


def submit_step(writer: Writer, step: int, rank: int, recorder: Recorder) -> None:
    """Start the one copy to the host; the writer's thread waits for it and writes the file."""
    if not recorder.sums:
        return
    arrived = start_copy(stacked(recorder))

    def write(path: Path) -> None:
        write_file(path, arrived(), step, rank, recorder)

    files = {
        sketch_path(Path(), step, rank).as_posix(): write,
        **whole_files(recorder, step, rank),
    }
    writer.submit(None, lambda: files)


def whole_files(recorder: Recorder, step: int, rank: int) -> Mapping[str, WriteFile]:
    """Return what writes the tensors kept whole, by path below the run folder."""
    return {} if recorder.whole is None else recorder.whole.files(step, rank)


def stacked(recorder: Recorder) -> dict[str, Tensor]:
    """Return all sums of a step, an address a row, on their device (the first, of several).

    Returns:
        sketch: float32 [n, SIDE, SIDE], not scaled.
        moments: float32 [n, 4]: L2, minimum, maximum, total.
        counts: int64 [n, 6]: zeros, NaN, infinities, negative infinities, elements that bfloat16
            holds, digest.
    """
    sums = list(recorder.sums.values())
    device, *others = {s.products.device: None for s in sums}
    none = torch.zeros(2, dtype=torch.int64, device=device)
    finite = torch.zeros(3, dtype=torch.int64, device=device)

    def rows(values: Iterable[Tensor]) -> Tensor:
        return torch.stack([v.to(device) for v in values] if others else list(values))

    exact = rows(none if s.exact is None else s.exact for s in sums)
    special = rows(finite if s.special is None else s.special for s in sums)
    digests = rows(s.digest for s in sums)
    products = rows(s.products for s in sums)
    moments = [
        rows(s.squares for s in sums).sqrt(),
        rows(s.minimum for s in sums),
        rows(s.maximum for s in sums),
        products[:, SIDE, SIDE],
    ]
    return {
        "sketch": products[:, :SIDE, :SIDE],
        "moments": torch.stack(moments, 1),
        "counts": torch.cat([exact[:, :1], special, exact[:, 1:], digests[:, None]], 1),
    }


def write_file(
    path: Path, on_host: Mapping[str, Tensor], step: int, rank: int, recorder: Recorder
) -> None:
    """Write what `stacked` returned and is on the host by now."""
    moments = on_host["moments"]
    records = [
        [name, phase, update, one.order, one.dtype, list(one.shape), one.num_elements]
        for (name, phase, update), one in recorder.sums.items()
    ]
    tensors = {
        "sketch": on_host["sketch"] / SIDE,
        "total": moments[:, 3].contiguous(),
        "moments": moments[:, :3].contiguous(),
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
    save_file(tensors, path, {"format": FORMAT})
