"""The trainer's log_probs computed again from given weights, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from align.core.config_value import EffectiveConfig
from align.core.errors import RunError
from align.core.text import Text
from align.referee.gradient_norms import SAME_LOG_PROBS
from align.referee.link import Link, LinkVerdict, not_recorded
from align.referee.probability_places import shift_of
from align.referee.step_batch import StepBatch

NAME = "log_probs, from the weights"


def load_model(folder: Path) -> Any:
    """Load a Hugging Face model in float64.

    Raises:
        RunError: The folder holds no model that transformers can load; no code of it is run.
    """
    from transformers import AutoModelForCausalLM

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="sdpa", local_files_only=True
        )
        return model.eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise RunError(
            where=str(folder),
            problem=f"cannot be loaded as a model ({str(error)[:120]})",
            fix="give a Hugging Face folder with config.json and safetensors; "
            "`align weights convert` makes one of a Megatron checkpoint",
        ) from error


def weights_link(batch: StepBatch, config: EffectiveConfig, model: Any) -> Link:
    """Compare old_log_probs of every response token with those of a model: mean difference.

    Source: log softmax of logits / rollout.temperature, as verl and MindSpeed-RL compute them.

    Args:
        model: from `load_model`, with the weights that the step began with.
    """
    stated = config.values.get("rollout.temperature")
    temperature = float(stated.value) if stated is not None else 1.0  # type: ignore[arg-type]
    declared = Text(
        f"log_softmax of logits / {temperature:g}", f"logits / {temperature:g} 的 log_softmax"
    )
    found = batch.get("input_ids", "attention_mask", "response_mask", "old_log_probs")
    if found is None:
        return not_recorded(NAME, declared, _NEEDS)
    ids, attention, mask, recorded = found
    if int(ids.max()) >= int(model.config.vocab_size):
        return Link(NAME, declared, LinkVerdict.UNKNOWN, note=_OTHER_VOCABULARY)
    own = mask != 0
    logits = torch.stack(list(_logits(model, ids.long(), attention.long(), mask.shape[1])))
    labels = ids.long()[:, -mask.shape[1] :]
    computed = _log_probs(logits / temperature, labels)
    apart = _apart(computed, recorded, own)
    if apart <= SAME_LOG_PROBS.value:
        return Link(NAME, declared, LinkVerdict.AS_DECLARED, apart, 0.0, SAME_LOG_PROBS.value)
    note = _OTHER
    if (
        temperature != 1
        and _apart(_log_probs(logits, labels), recorded, own) <= SAME_LOG_PROBS.value
    ):
        note = _NO_TEMPERATURE
    elif shift_of(recorded.numpy(), computed.numpy(), own.numpy()) is not None:
        note = _SHIFTED
    return Link(NAME, declared, LinkVerdict.DIFFERS, apart, 0.0, SAME_LOG_PROBS.value, note)


def _logits(model: Any, ids: Tensor, attention: Tensor, width: int) -> Iterator[Tensor]:
    """Yield the logits [width, vocabulary] that chose a row's last ``width`` tokens, 0 at padding.

    A row goes through the model by itself and without its padding.
    """
    for row, attended in zip(ids, attention.bool(), strict=True):
        with torch.no_grad():
            logits = model(input_ids=row[attended][None], use_cache=False).logits[0]
        chose = torch.zeros(len(row), logits.shape[-1], dtype=logits.dtype)
        chose[attended.nonzero().flatten()[1:]] = logits[:-1]
        yield chose[-width:]


def _log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)


def _apart(one: Tensor, other: Tensor, own: Tensor) -> float:
    return float((one - other)[own].abs().mean())


_NEEDS = Text(
    "needs input_ids, attention_mask and old_log_probs",
    "需要 input_ids、attention_mask 与 old_log_probs",
)
_NO_TEMPERATURE = Text(
    "they are those of temperature 1: the trainer does not divide its logits",
    "与温度为 1 时的结果一致：训练侧没有对 logits 做除法",
)
_SHIFTED = Text(
    "equal once moved by one token: labels or mask are shifted",
    "错开一个 token 后相等：标签或 mask 发生错位",
)
_OTHER = Text(
    "other weights than these, or another model setting (rope, epsilon, attention): compare the "
    "weights with `align weights diff`, then the layers",
    "权重不是这一份，或模型设置（rope、epsilon、注意力）不同："
    "先用 `align weights diff` 比较权重，再比较各层",
)
_OTHER_VOCABULARY = Text(
    "the step's ids are beyond this model's vocabulary: another model",
    "该 step 的 token id 超出此模型的词表：不是同一个模型",
)
