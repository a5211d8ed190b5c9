"""verl's critic on a CPU, whose engine no plugin of the recipe registers.

verl asks for flash attention by name where it builds the value model.
"""

from __future__ import annotations

from typing import Any

import torch
import verl.utils.model as model
from transformers import AutoModelForTokenClassification
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead

EngineRegistry.register("value_model", ["fsdp", "fsdp2"], device=["cpu"])(FSDPEngineWithValueHead)


def _load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    torch.manual_seed(0)  # a language model's checkpoint has no value head
    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, attn_implementation="eager"
    )


model.load_valuehead_model = _load
