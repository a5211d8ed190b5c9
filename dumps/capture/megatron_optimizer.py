"""What Megatron's optimizers keep of a parameter: what they step, and Adam's moments.

A plain torch optimizer steps the parameter itself. Megatron's step a float32 copy of a parameter
of 16 bits (``main_param``), or, distributed, a flat shard of it; a chain holds several optimizers,
such as one for experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dumps.store.tensor_records import Phase

MOMENTS = (Phase.FIRST_MOMENT, Phase.SECOND_MOMENT)


def stepped(optimizer: Any, parameter: nn.Parameter) -> Tensor | None:
    """Return the tensor that an optimizer steps instead of a parameter, None where it is none.

    It has the parameter's shape, or is the flat range of it that `owned_ranges` says.
    """
    for part, inner in _parts(optimizer):
        key = _key(part, inner, parameter)
        if key is not None and key is not parameter:
            return key.detach()
    return None


def moments(optimizer: Any, parameter: nn.Parameter) -> Mapping[str, Tensor]:
    """Return Adam's moments of a parameter, by phase; like `stepped` in shape.

    Nothing before the first step, or where another process has them.
    """
    for part, inner in _parts(optimizer):
        key = _key(part, inner, parameter)
        state = {} if key is None else inner.state.get(key, {})
        if not any(name in state for name in MOMENTS):
            continue
        if _is_packed(part, inner):
            return {name: inner.get_unscaled_state(key, name) for name in MOMENTS}
        return {name: state[name] for name in MOMENTS if name in state}
    return {}


def owned_ranges(optimizer: Any) -> dict[int, tuple[int, int]] | None:
    """Return the part of each parameter that this rank's distributed optimizer reduces and steps.

    Args:
        optimizer: Megatron's, alone or a chain of them.

    Returns:
        ``id(parameter) → (start, end)`` in the flattened parameter, the ``owned`` of
        `record_gradients`; None if no optimizer is distributed: then every rank holds all.
    """
    distributed = [part for part in _chain(optimizer) if hasattr(part, "gbuf_ranges")]
    if not distributed:
        return None
    return {
        id(parameter): (owned["param"].start, owned["param"].end)
        for part in distributed
        for buffer in part.gbuf_ranges
        for buckets in buffer.values()
        for bucket in buckets
        for parameter, owned in bucket["param_map"].items()
    }


def loss_scale(optimizer: Any) -> Tensor | None:
    """Return what the loss is multiplied with before the backward pass, None where it is not."""
    for part in _chain(optimizer):
        if getattr(part, "grad_scaler", None) is not None:
            return torch.as_tensor(part.get_loss_scale())
    return None


def _chain(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def _parts(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each optimizer of a chain, and the torch optimizer within it."""
    for part in _chain(optimizer):
        inner = getattr(part, "optimizer", part)
        if inner is not None and hasattr(inner, "state"):
            yield part, inner


def _key(part: Any, inner: Any, parameter: nn.Parameter) -> Tensor | None:
    """Return what the torch optimizer knows a parameter by, None where it has no part of it."""
    places = getattr(part, "model_param_group_index_map", None)
    if places is not None:
        if parameter not in places:
            return None
        group, number = places[parameter]
        shard: Tensor = inner.param_groups[group]["params"][number]
        return shard
    main = getattr(parameter, "main_param", None)
    return main if isinstance(main, Tensor) else parameter


def _is_packed(part: Any, inner: Any) -> bool:
    """Tell whether moments are kept in few bits beside a scale (Transformer Engine's Adam)."""
    config = getattr(part, "config", None)
    is_aware = bool(getattr(config, "use_precision_aware_optimizer", False))
    return is_aware and hasattr(inner, "get_unscaled_state")
