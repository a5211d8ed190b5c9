"""Write checkpoints tensor by tensor, whole folders or none."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from align.core.errors import DumpError
from dumps.readers.weights_safetensors import DTYPES

if TYPE_CHECKING:
    from torch import Tensor

_CODES = {name: code for code, name in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write: its header is known before its numbers are.

    Args:
        dtype: torch's name without "torch.".
        make: returns the numbers; called once, when it is this tensor's turn.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    make: Callable[[], Tensor]

    @property
    def size_bytes(self) -> int:
        """Bytes of the numbers."""
        import torch

        count = 1
        for length in self.shape:
            count *= length
        return count * int(getattr(torch, self.dtype).itemsize)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a hidden folder that takes ``path``'s place when the block ends well.

    Raises:
        DumpError: ``path`` exists and is not an empty folder.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise DumpError(
            where=str(path),
            problem="exists already",
            fix="give a new folder; nothing is overwritten",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield hidden
        hidden.chmod(0o755)
        os.replace(hidden, path)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def write_safetensors(
    path: Path, tensors: Sequence[NewTensor], done: Callable[[str], None]
) -> None:
    """Write one file, holding one tensor in memory at a time."""
    import torch

    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size_bytes
        header[tensor.name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            made = tensor.make()
            assert tuple(made.shape) == tensor.shape, tensor.name
            assert str(made.dtype) == f"torch.{tensor.dtype}", tensor.name
            flat = made.contiguous().view(-1).view(torch.uint8)
            file.write(flat.numpy().data)
            done(tensor.name)


def write_shards(
    folder: Path, tensors: Sequence[NewTensor], shard_bytes: int, done: Callable[[str], None]
) -> int:
    """Write a Hugging Face checkpoint: one file, or shards with their index.

    Returns:
        The number of files with numbers.
    """
    groups = in_shards(tensors, shard_bytes)
    if len(groups) <= 1:
        write_safetensors(folder / "model.safetensors", tensors, done)
        return 1
    weight_map = {}
    for number, group in enumerate(groups, 1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        write_safetensors(folder / name, group, done)
        weight_map.update({tensor.name: name for tensor in group})
    total = sum(tensor.size_bytes for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    return len(groups)


def in_shards(tensors: Sequence[NewTensor], shard_bytes: int) -> list[list[NewTensor]]:
    """Cut a list so that no piece is larger than ``shard_bytes``, single tensors aside."""
    groups: list[list[NewTensor]] = []
    size = 0
    for tensor in tensors:
        if not groups or size + tensor.size_bytes > shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.size_bytes
    return groups


@contextmanager
def mapped(
    folder: Path, tensors: Sequence[NewTensor], done: Callable[[str], None]
) -> Iterator[dict[str, Tensor]]:
    """Give the tensors as views of a scratch file, for a writer that wants all of them at once."""
    import safetensors

    scratch = folder / ".scratch.safetensors"
    try:
        write_safetensors(scratch, tensors, done)
        with safetensors.safe_open(str(scratch), framework="pt") as opened:
            yield {tensor.name: opened.get_tensor(tensor.name) for tensor in tensors}
    finally:
        scratch.unlink(missing_ok=True)
