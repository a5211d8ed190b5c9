"""A Hugging Face model as its folder has it, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import RunError

if TYPE_CHECKING:
    from torch import nn

_FIX = (
    "give a Hugging Face folder with config.json and safetensors; "
    "`align weights convert` makes one of a Megatron checkpoint"
)


def load_model(folder: Path, dtype: str = "auto", attention: str = "eager") -> nn.Module:
    """Load a model for inference; no code of its folder is run.

    Args:
        dtype: torch's name; "auto" for the one its file has.
        attention: transformers' name of how attention is computed.

    Raises:
        RunError: The folder holds no model that transformers can load, or not all of its weights,
            which would be drawn at random.
    """
    from transformers import AutoModelForCausalLM

    if not folder.is_dir():
        raise RunError(where=str(folder), problem="is no folder", fix=_FIX)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        problem = f"cannot be loaded as a model ({str(error)[:120]})"
        raise RunError(where=str(folder), problem=problem, fix=_FIX) from error
    model, info = loaded
    if info["missing_keys"]:
        problem = f"lacks weights, {min(info['missing_keys'])} for one"
        raise RunError(where=str(folder), problem=problem, fix=_FIX)
    found: nn.Module = model.eval()
    return found
