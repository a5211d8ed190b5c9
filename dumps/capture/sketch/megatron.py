"""What the chunks of a Megatron-style model are, read off the chunks and Megatron's own groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from align.layout.address import input_addresses, module_addresses
from align.layout.dialect import (
    MEGATRON_LOCAL,
    MEGATRON_LOCAL_GROUPED,
    MEGATRON_TE,
    MEGATRON_TE_GROUPED,
    Dialect,
)
from align.layout.entries import Place
from align.layout.family import Family, family_of
from align.layout.rank_weights import RankWeight, rank_weights
from align.layout.sizes import Sizes, sizes_of
from dumps.capture.gradients import plain_name
from dumps.capture.sketch.local import Local, SharedSequences

_VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
_DIALECTS = {
    (False, False): MEGATRON_LOCAL,
    (False, True): MEGATRON_LOCAL_GROUPED,
    (True, False): MEGATRON_TE,
    (True, True): MEGATRON_TE_GROUPED,
}


def megatron_parts(chunks: Sequence[nn.Module], config: Mapping[str, Any]) -> list[Local]:
    """Return what each chunk of this process is, for `sketched_step` and `record_gradients`.

    Every process of a run calls it, or none where sequences are shared (context parallelism).

    Args:
        chunks: the model parts of this process, one a virtual pipeline stage.
        config: of the Hugging Face model that was converted (``config.json``).

    Raises:
        ConfigError: No family knows the model, or a size is missing.
    """
    where = "config.json"
    family, sizes = family_of(config, where=where), sizes_of(config, where=where)
    groups: Any = sys.modules["megatron.core.parallel_state"]
    rank = groups.get_tensor_model_parallel_rank()
    ranks = groups.get_tensor_model_parallel_world_size()
    found = []
    for chunk in chunks:
        shapes = {plain_name(name): p.shape for name, p in chunk.named_parameters()}
        dialect, place = _dialect(shapes), _place(chunk, shapes, sizes, groups, ranks)
        found.append(
            Local(
                outputs=module_addresses(family, sizes, dialect, place, rank),
                inputs=input_addresses(family, sizes, dialect, place, rank),
                weights=_weights(family, sizes, dialect, place, groups),
                tensor_rank=rank,
                tensor_ranks=ranks,
                replica=groups.get_data_parallel_rank(with_context_parallel=True),
                expert_replica=_expert_replica(groups) if sizes.experts else 0,
                is_first=place.is_first,
                gradient_share=_gradient_share(chunk, groups),
                sequence_first=True,
                sequences=_shared_sequences(groups),
            )
        )
    return found


def _weights(
    family: Family, sizes: Sizes, dialect: Dialect, place: Place, groups: Any
) -> dict[str, RankWeight]:
    """Return the parameters' rules; none for experts if they are cut over ranks of their own."""
    found = rank_weights(family, sizes, dialect, place, groups.get_tensor_model_parallel_rank())
    ranks = getattr(groups, "get_expert_tensor_parallel_world_size", lambda: place.ranks)()
    if ranks == place.ranks:
        return found
    return {name: weight for name, weight in found.items() if not weight.is_expert}


def _dialect(shapes: Mapping[str, torch.Size]) -> Dialect:
    is_fused = any(name.endswith("linear_qkv.layer_norm_weight") for name in shapes)
    grouped = (".experts.weight1", ".experts.linear_fc1.weight0")
    return _DIALECTS[is_fused, any(name.endswith(grouped) for name in shapes)]


def _place(
    chunk: nn.Module, shapes: Mapping[str, torch.Size], sizes: Sizes, groups: Any, ranks: int
) -> Place:
    """Say which part of the model a chunk is: Megatron numbers layers from 1 over all stages."""
    numbers = [
        int(module.layer_number) - 1
        for name, module in chunk.named_modules()
        if name.rpartition(".")[0].endswith("decoder.layers")
    ]
    layers = range(min(numbers), max(numbers) + 1) if numbers else range(0)
    rows = next((shapes[name][0] * ranks for name in _VOCABULARY if name in shapes), sizes.vocab)
    names = {plain_name(name) for name, _ in chunk.named_modules()}
    return Place(
        ranks,
        layers,
        _experts(sizes, groups),
        rows,
        is_first="embedding.word_embeddings" in names,
        is_last="output_layer" in names,
    )


def _experts(sizes: Sizes, groups: Any) -> range:
    if not sizes.experts:
        return range(0)
    count = sizes.experts // groups.get_expert_model_parallel_world_size()
    first = groups.get_expert_model_parallel_rank() * count
    return range(first, first + count)


def _expert_replica(groups: Any) -> int:
    rank = getattr(
        groups,
        "get_expert_data_parallel_rank",  # 0.9 and later
        getattr(groups, "get_data_modulo_expert_parallel_rank", lambda: 0),
    )
    return int(rank())


def _gradient_share(chunk: nn.Module, groups: Any) -> float:
    """Return what Megatron's DistributedDataParallel multiplies gradients with."""
    config = next((m.config for m in chunk.modules() if hasattr(m, "config")), None)
    if not hasattr(chunk, "ddp_config") or getattr(config, "calculate_per_token_loss", False):
        return 1.0
    return 1.0 / int(groups.get_data_parallel_world_size(with_context_parallel=True))


def _shared_sequences(groups: Any) -> SharedSequences | None:
    ranks = groups.get_context_parallel_world_size()
    if ranks == 1:
        return None
    group = groups.get_context_parallel_group()

    def gather(tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(ranks)]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        return parts

    return SharedSequences(groups.get_context_parallel_rank(), ranks, gather)
