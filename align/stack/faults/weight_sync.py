"""The rollout engine answers with other weights than those just trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from align.core.rung import Rung
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from align.stack.pipeline import Model, Pipeline


def never_synced(pipeline: Pipeline) -> Pipeline:
    """Let the engine load the weights once and never again."""
    loaded: list[int] = []

    def sync_weights(trainer_model: Model, rollout_model: Model) -> None:
        if id(rollout_model) not in loaded:
            loaded.append(id(rollout_model))
            pipeline.sync_weights(trainer_model, rollout_model)

    return replace(pipeline, sync_weights=sync_weights)


def one_sync_late(pipeline: Pipeline) -> Pipeline:
    """Give the engine the weights of the sync before."""
    earlier: dict[str, Tensor] = {}

    def sync_weights(trainer_model: Model, rollout_model: Model) -> None:
        pipeline.sync_weights(trainer_model, rollout_model)
        current = {name: tensor.clone() for name, tensor in rollout_model.state_dict().items()}
        if earlier:
            rollout_model.load_state_dict(earlier)
        earlier.update(current)

    return replace(pipeline, sync_weights=sync_weights)


def reordered_qkv(pipeline: Pipeline) -> Pipeline:
    """Read a fused q, k, v of the layout [q k v of a group] … as [all q] [all k] [all v]."""

    def sync_weights(trainer_model: Model, rollout_model: Model) -> None:
        pipeline.sync_weights(trainer_model, rollout_model)
        with torch.no_grad():
            for layer in rollout_model.model.layers:
                for parts in _fused_parts(layer.self_attn):
                    _reorder(parts, rollout_model.config.num_key_value_heads)

    return replace(pipeline, sync_weights=sync_weights)


def _fused_parts(module: nn.Module) -> Iterator[list[Tensor]]:
    projections = [getattr(module, name) for name in ("q_proj", "k_proj", "v_proj")]
    for kind in ("weight", "bias"):
        parts = [getattr(projection, kind) for projection in projections]
        if all(part is not None for part in parts):
            yield parts


def _reorder(parts: list[Tensor], num_groups: int) -> None:
    """Lay rows out group by group, then cut them as if q, k and v were whole; in place."""
    grouped = [part.detach().clone().chunk(num_groups) for part in parts]
    fused = torch.cat([piece for group in zip(*grouped, strict=True) for piece in group])
    pieces = torch.split(fused, [len(part) for part in parts])
    for part, rows in zip(parts, pieces, strict=True):
        part.copy_(rows)


def _sync(
    name: str,
    what: str,
    field_report: str,
    finding_id: str,
    change: Callable[[Pipeline], Pipeline],
) -> Fault:
    needs = ("weights", "rollouts")
    return Fault(
        name,
        Rung.WEIGHT_SYNC,
        what,
        field_report,
        f"weight_sync.{finding_id}",
        needs,
        change=change,
    )


FAULTS = (
    _sync(
        "not_synced",
        "The engine keeps the weights it loaded at the start.",
        "practitioners' decision tree, report 1",
        "not_synced",
        never_synced,
    ),
    _sync(
        "stale_weights",
        "The engine always holds the weights of the training step before.",
        "practitioners' decision tree, report 1",
        "stale",
        one_sync_late,
    ),
    _sync(
        "fused_qkv_reordered",
        "The engine's fused q, k, v holds the rows in another order than the trainer's.",
        "report 1",
        "permuted",
        reordered_qkv,
    ),
)
