"""The batch that both sides train on: responses of unequal length, and what the loss needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VOCAB = 96
LENGTHS = (16, 11, 7, 13)
PROMPT = 3
MICRO = 2
LEARNING_RATE = 1e-2
EPSILON = 1e-3  # far above rounding of the gradients, which else decides an update's sign
CLIP_NORM = 0.1  # below the norm that there is
OLD_LOG_PROBS = "old_log_probs.pt"


def sequences() -> list[Tensor]:
    """Return int64 [length] ids of each sequence, prompt and response."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCAB, (length,), generator=generator) for length in LENGTHS]


def advantages() -> list[Tensor]:
    """Return float32 [response length] a sequence."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(length - PROMPT, generator=generator) for length in LENGTHS]


def old_log_probs(folder: Path) -> list[Tensor]:
    """Return float32 [response length] a sequence, as they were saved beside the model."""
    found: list[Tensor] = torch.load(folder / OLD_LOG_PROBS)
    return found


def nested(rows: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def batch_of(folder: Path, rank: int, ranks: int) -> Any:
    """Return a data-parallel rank's share as verl's trainers hand it to an engine."""
    from verl.utils import tensordict_utils as tu

    own = slice(rank, None, ranks)
    rows = sequences()[own]
    tensors = {
        "input_ids": nested(rows),
        "position_ids": nested([torch.arange(len(row)) for row in rows]),
        "prompts": nested([row[:PROMPT] for row in rows]),
        "responses": nested([row[PROMPT:] for row in rows]),
        "response_mask": nested([torch.ones(len(row) - PROMPT) for row in rows]),
        "loss_mask": nested([torch.ones(len(row) - PROMPT) for row in rows]),
        "old_log_probs": nested(old_log_probs(folder)[own]),
        "advantages": nested(advantages()[own]),
    }
    return tu.get_tensordict(
        tensors,
        {
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": MICRO // ranks,
            "temperature": 1.0,
            "global_batch_size": len(LENGTHS),
            "calculate_entropy": False,
        },
    )
