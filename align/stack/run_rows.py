"""What a step leaves behind, as rows and as named tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from align.stack.batch import group_names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from align.stack.batch import TrainBatch
    from align.stack.collect import Collected

_RECORDED = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "responses",
    "response_mask",
    "rollout_log_probs",
    "old_log_probs",
    "ref_log_prob",
    "values",
    "token_level_rewards",
    "advantages",
    "returns",
)


def rollout_rows(
    step: int, collected: Collected, tokenizer: PreTrainedTokenizerFast, num_samples: int
) -> Iterator[dict[str, Any]]:
    """Yield a response a row: verl's fields, then what verl does not record.

    ``input`` and ``output`` are decoded with special tokens left out, as verl does it;
    ``prompt_ids`` and ``response_ids`` have them, and so has ``prompt_token_ids``, with which the
    engine says it was asked. ``uid`` names the responses to one prompt. A rule
    that does not apply is null.
    """
    groups = group_names([row.index for row in collected.rows], num_samples)
    for response, score, row, group in zip(
        collected.responses, collected.scores, collected.rows, groups, strict=True
    ):
        yield {
            "input": tokenizer.decode(list(response.prompt_ids), skip_special_tokens=True),
            "output": response.text,
            "gts": row.ground_truth,
            "score": score.total,
            "step": step,
            "uid": f"{step}-{group}",
            "index": row.index,
            "task": row.task,
            "finish_reason": response.finish_reason,
            **{f"score/{rule}": value for rule, value in sorted(score.by_rule.items())},
            "prompt_ids": list(response.prompt_ids),
            "prompt_token_ids": list(response.prompt_token_ids),
            "response_ids": list(response.response_ids),
            "response_mask": [1] * len(response.response_ids),
            "rollout_log_probs": [float(value) for value in response.log_probs],
        }


def trainer_inputs(batch: TrainBatch) -> dict[str, Tensor]:
    """Return the batch's tensors by verl's names, those it has."""
    tensors = {name: getattr(batch, name) for name in _RECORDED}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}
