"""Write Megatron checkpoints: a file a rank, or one distributed checkpoint."""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from dumps.store.weights_writer import NewTensor, mapped

_TRACKER = "latest_checkpointed_iteration.txt"
_CHECKPOINT_VERSION = 3.0  # Megatron's own since query groups are interleaved


def rank_folder(tensor: int, pipeline: int | None, expert: int | None) -> str:
    """Name a rank's folder as Megatron does; None for a kind of parallelism that is not used."""
    name = f"mp_rank_{tensor:02d}"
    name += "" if pipeline is None else f"_{pipeline:03d}"
    return name + ("" if expert is None else f"_{expert:03d}")


def write_rank(
    root: Path,
    folder: str,
    chunks: Sequence[Sequence[NewTensor]],
    arguments: Mapping[str, object],
    done: Callable[[str], None],
) -> None:
    """Write one rank's ``model_optim_rng.pt``, without optimizer, under ``release``."""
    import torch

    target = root / "release" / folder
    target.mkdir(parents=True)
    names = ["model"] if len(chunks) == 1 else [f"model{i}" for i in range(len(chunks))]
    with ExitStack() as stack:
        saved: dict[str, object] = {
            "args": Namespace(**arguments),
            "checkpoint_version": _CHECKPOINT_VERSION,
            "iteration": 0,
        }
        for name, chunk in zip(names, chunks, strict=True):
            scratch = target / name
            scratch.mkdir()
            stack.callback(scratch.rmdir)
            saved[name] = stack.enter_context(mapped(scratch, chunk, done))
        torch.save(saved, target / "model_optim_rng.pt")
    (root / _TRACKER).write_text("release\n", encoding="utf-8")


def write_torch_dist(
    root: Path,
    tensors: Sequence[NewTensor],
    arguments: Mapping[str, object],
    done: Callable[[str], None],
) -> None:
    """Write whole tensors as Megatron-core's ``torch_dist`` format under ``release``."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    target = root / "release"
    target.mkdir(parents=True)
    with mapped(root, tensors, done) as state:
        writer = FileSystemWriter(str(target), single_file_per_rank=True)
        with warnings.catch_warnings():  # that one process saves is what is meant
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            save(state, storage_writer=writer, no_dist=True)
    common = {"args": Namespace(**arguments), "checkpoint_version": _CHECKPOINT_VERSION}
    torch.save({**common, "iteration": 0}, target / "common.pt")
    versions = {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
    }
    (target / "metadata.json").write_text(json.dumps(versions), encoding="utf-8")
    (root / _TRACKER).write_text("release\n", encoding="utf-8")
