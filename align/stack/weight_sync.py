"""Copy the trainer's weights into the rollout engine's own model."""

from __future__ import annotations

import torch
from torch import nn

from align.stack import sharding


@torch.no_grad()
def sync_weights(trainer_model: nn.Module, rollout_model: nn.Module) -> None:
    """Overwrite every parameter and buffer of the rollout model, in its own dtype.

    Raises:
        KeyError: The two models do not have the same tensors.
    """
    trained = trainer_model.state_dict()
    for name, tensor in rollout_model.state_dict().items():
        tensor.copy_(sharding.whole(trained[name]))
