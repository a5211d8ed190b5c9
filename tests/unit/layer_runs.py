"""Tiny models whose steps are sketched into run folders, for the tests of layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_gradients, record_parameters
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase

LENGTHS = (16, 11, 7)
Edit = Callable[[Any], None]


def tiny_qwen2(**keys: Any) -> Any:
    """Return a Qwen2 of three layers with weights large enough for attention to matter."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings = {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 128,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "use_cache": False,
        "attn_implementation": "eager",
        "initializer_range": 0.15,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = Qwen2ForCausalLM(Qwen2Config(**{**settings, **keys}))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=0.3)
    return model


def batch(side: str = "right", seed: int = 3) -> dict[str, Tensor]:
    """Return three rows of unequal length, padded on one side."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 128, (length,), generator=generator) for length in LENGTHS]
    width = max(LENGTHS)
    ids, mask = torch.zeros(2, len(rows), width, dtype=torch.int64)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), None)
        ids[i, place], mask[i, place] = row, 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def loss_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return the mean cross-entropy of the attended tokens, none of which sees the padding."""
    logits = model(**inputs).logits.float()
    attended = inputs["attention_mask"].bool()
    return nn.functional.cross_entropy(logits[attended], inputs["input_ids"][attended])


def recorded(
    folder: Path,
    edit: Edit = lambda model: None,
    *,
    side: str = "right",
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    steps: int = 1,
    **keys: Any,
) -> RunData:
    """Sketch forward and backward of an edited model, and open the folder as a run.

    Args:
        steps: with other tokens each and the same weights.
    """
    model = tiny_qwen2(**keys).to(dtype)
    edit(model)
    for step in range(1, steps + 1):
        model.zero_grad(set_to_none=True)
        with sketched_step(model, folder, step, FailureLog(folder, "test")) as recorder:
            record_parameters(recorder, model, Phase.PARAMETER)
            (loss_of(model, batch(side, 2 + step)) * scale).backward()
            record_gradients(recorder, model)
    return RunData(discover([folder]))
