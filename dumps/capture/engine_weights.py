"""Sketch the weights a rollout engine holds, under the trainer's names and indices.

Engines fuse q, k, v and gate, up, and cut tensors among their ranks; the layout algebra takes both
apart on every rank for itself, and the sketches of all ranks add up to the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from align.layout.dialect import VLLM
from align.layout.entries import whole
from align.layout.family import family_of
from align.layout.rank_weights import rank_weights
from align.layout.recognise_names import framework_of
from align.layout.sizes import sizes_of
from dumps.capture.sketch.local import Local
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.weights import record_parameters
from dumps.store.tensor_records import Phase

_EMBEDDING = "model.embed_tokens.weight"
_WHERE = "the engine's model"


def record_engine(
    recorder: Recorder,
    model: nn.Module,
    config: Mapping[str, Any],
    *,
    rank: int = 0,
    ranks: int = 1,
) -> None:
    """Sketch every parameter of an engine's model.

    Args:
        config: its ``config.json``.
        rank, ranks: of the engine's tensor-parallel group.

    Raises:
        ConfigError: No family of `align.layout` fits the configuration.
    """
    own = dict(model.named_parameters())
    weights = None
    if ranks > 1 or framework_of(own) == "vllm":
        sizes = sizes_of(config, where=_WHERE)
        rows = own[_EMBEDDING].shape[0] * ranks if _EMBEDDING in own else 0
        place = whole(sizes, ranks=ranks, padded_vocab=rows)
        weights = rank_weights(family_of(config, where=_WHERE), sizes, VLLM, place, rank)
    local = Local(weights=weights, tensor_rank=rank, tensor_ranks=ranks)
    record_parameters(recorder, model, Phase.ENGINE, local=local)
