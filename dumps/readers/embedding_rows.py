"""How many rows the embedding and the output layer of a checkpoint have, from its header alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 << 20  # the limit of the safetensors format
_EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight")
_OUTPUTS = ("lm_head.weight", "output_layer.weight", "embed_out.weight")


def embedding_rows(path: Path) -> Mapping[str, int]:
    """Return rows by tensor name, embeddings before output layers; empty where there is none."""
    shapes = _shapes(path)
    return {
        name: shapes[name][0]
        for ends in (_EMBEDDINGS, _OUTPUTS)
        for name in sorted(shapes)
        if name.endswith(ends) and len(shapes[name]) == 2
    }


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read a safetensors header; one that is cut off or no such header has no tensors."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 2 <= size <= min(_MAX_HEADER_BYTES, path.stat().st_size):
                return {}
            header = json.loads(file.read(size))
        return {
            str(name): tuple(map(int, tensor["shape"]))
            for name, tensor in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
