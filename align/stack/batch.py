"""The tensors one training step works on, spelled and padded as verl's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from align.stack.rewards import Scores
from align.stack.rollout import Response

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from align.stack.config import StackConfig


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """Responses of one step; b rows, p prompt tokens, r response tokens.

    Prompts are padded on the left, responses on the right. What a later stage computes is None
    before it.

    Args:
        input_ids: int64 [b, p + r].
        attention_mask: int64 [b, p + r], 0 at padding.
        position_ids: int64 [b, p + r], counting tokens from 0; padding on the right keeps the last.
        responses: int64 [b, r].
        response_mask: int64 [b, r], 1 at generated tokens, the stop token included.
        rollout_log_probs: float32 [b, r] from the rollout engine, 0 at padding.
        token_level_rewards: float32 [b, r], the score at the last generated token.
        index: int64 [b], `Row.index`.
        uid: [b], equal for the responses to one prompt.
        position: int64 [b], the row in the step's recorded batch.
        old_log_probs, ref_log_prob, values, advantages, returns: float [b, r].
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    responses: Tensor
    response_mask: Tensor
    rollout_log_probs: Tensor
    token_level_rewards: Tensor
    index: Tensor
    uid: tuple[str, ...]
    position: Tensor | None = None
    old_log_probs: Tensor | None = None
    ref_log_prob: Tensor | None = None
    values: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def rows(self, chosen: slice | Sequence[int]) -> TrainBatch:
        """Return the batch of some rows, in the order given."""
        numbers = range(len(self))[chosen] if isinstance(chosen, slice) else list(chosen)
        picked: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Tensor):
                value = value[chosen if isinstance(chosen, slice) else numbers]
            elif value is not None:
                value = tuple(value[i] for i in numbers)
            picked[each.name] = value
        return TrainBatch(**picked)

    def to(self, device: torch.device) -> TrainBatch:
        """Return the batch with its tensors on a device."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        moved = {k: v.to(device) for k, v in values.items() if isinstance(v, Tensor)}
        return TrainBatch(**{**values, **moved})


def given(column: Tensor | None) -> Tensor:
    """Return a column that an earlier stage has computed."""
    assert column is not None, "a stage reads a column that no earlier stage has computed"
    return column


def concatenate(batches: Sequence[TrainBatch]) -> TrainBatch:
    """Join batches of equal widths row by row; a column that one lacks is None."""
    joined: dict[str, Any] = {}
    for each in fields(TrainBatch):
        values = [getattr(batch, each.name) for batch in batches]
        if any(value is None for value in values):
            joined[each.name] = None
        elif isinstance(values[0], Tensor):
            joined[each.name] = torch.cat(values)
        else:
            joined[each.name] = tuple(uid for value in values for uid in value)
    return TrainBatch(**joined)


def assemble(
    responses: Sequence[Response],
    scores: Sequence[Scores],
    tokenizer: PreTrainedTokenizerFast,
    config: StackConfig,
) -> TrainBatch:
    """Pad prompts to ``data.max_prompt_length`` on the left, responses on the right.

    Source: verl `AgentLoopWorker._agent_loop_postprocess`; position ids as its
    `compute_position_id_with_mask`.
    """
    p, r = config.data.max_prompt_length, config.data.max_response_length
    pad = int(tokenizer.pad_token_id)
    prompts = [_padded(each.prompt_ids, p, pad, left=True) for each in responses]
    answers = [_padded(each.response_ids, r, pad) for each in responses]
    prompt_mask = [_padded([1] * len(each.prompt_ids), p, 0, left=True) for each in responses]
    response_mask = torch.tensor([_padded([1] * len(x.response_ids), r, 0) for x in responses])
    attention_mask = torch.cat([torch.tensor(prompt_mask), response_mask], dim=1)
    tokens = torch.tensor(answers)
    return TrainBatch(
        input_ids=torch.cat([torch.tensor(prompts), tokens], dim=1),
        attention_mask=attention_mask,
        position_ids=position_ids_of(attention_mask),
        responses=tokens,
        response_mask=response_mask,
        rollout_log_probs=torch.tensor([_padded(x.log_probs, r, 0.0) for x in responses]),
        token_level_rewards=token_level_rewards([s.total for s in scores], response_mask),
        index=torch.tensor([each.row_index for each in responses]),
        uid=group_names([each.row_index for each in responses], config.rollout.n),
    )


def position_ids_of(attention_mask: Tensor) -> Tensor:
    """Count the attended tokens of every row from 0; padding on the left stays at 0.

    Source: verl `compute_position_id_with_mask`.
    """
    return (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)


def token_level_rewards(scores: Sequence[float], response_mask: Tensor) -> Tensor:
    """Put every score at the last token of its response; an empty response gets none.

    Source: verl `extract_reward` of naive reward managers.
    """
    rewards = torch.zeros(response_mask.shape, dtype=torch.float32)
    for row, (value, length) in enumerate(zip(scores, response_mask.sum(-1).tolist(), strict=True)):
        if length:
            rewards[row, length - 1] = value
    return rewards


def group_names(row_indices: Sequence[int], n: int) -> tuple[str, ...]:
    """Name the group of every response; a row asked twice in a step makes two groups."""
    seen: Counter[int] = Counter()
    names = []
    for index in row_indices:
        names.append(f"{index}-{seen[index] // n}")
        seen[index] += 1
    return tuple(names)


def _padded(values: Sequence[float], width: int, pad: float, *, left: bool = False) -> list[float]:
    padding = [pad] * (width - len(values))
    return [*padding, *values] if left else [*values, *padding]
