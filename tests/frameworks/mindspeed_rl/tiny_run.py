"""What the run of `real_worker` generates and is given, by formulas that tests can repeat."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

PROMPTS, SAMPLES = 4, 2
STEPS = int(os.environ.get("STEPS", "2"))
ROWS = PROMPTS * SAMPLES
EOS, PAD, LONGEST = 1, 63, 6
KL_COEFFICIENT, CLIP = 0.05, 0.2
MINI, MICRO = 4, 2
MODEL: dict[str, Any] = {
    **{"model_type": "qwen2", "num_hidden_layers": 4, "hidden_size": 32, "vocab_size": 64},
    **{"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 32},
    "tie_word_embeddings": False,
}

FAULTS = {2: "stale", 3: "left_out", 4: "scaled", 5: "permuted", 6: "missing"}
"""What goes wrong in the resharding of a step, in a run with planted faults."""


def prompt(number: int, step: int) -> list[int]:
    """Return the ids of a prompt."""
    return [7 + (3 * (number + step) + i) % 50 for i in range(3 + number)]


def answer(asked: Sequence[int], sample: int, step: int) -> list[int]:
    """Return a response: cut at `LONGEST` where it is long, else ended with eos."""
    start = sum(asked) + 5 * sample + 11 * step
    length = 2 + start % LONGEST
    ids = [2 + (start + 7 * i) % 60 for i in range(length)]
    return ids[:LONGEST] if length > LONGEST - 1 else [*ids, EOS]


def reference(row: int, length: int) -> torch.Tensor:
    """Return log_probs of a reference model that is not there, near those of the trained one."""
    return (-5.5 - 0.1 * torch.arange(LONGEST) - 0.01 * row)[:length]


def advantages(row: int, length: int) -> torch.Tensor:
    """Return a row's advantages."""
    return torch.full((length,), 1.0 - 0.5 * row)
