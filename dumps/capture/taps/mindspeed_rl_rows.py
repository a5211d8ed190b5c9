"""What MindSpeed-RL's actor trains on: rows of the dock, in verl's layout, and their scores.

The dock pads whole rows on the right and says where prompt and response end; verl's layout has the
response in columns of its own. No other process has both the tensors and the step's number.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_PER_TOKEN = {
    "old_log_prob": "old_log_probs",
    "ref_log_prob": "ref_log_prob",
    "advantages": "advantages",
    "returns": "returns",
    "values": "values",
}
"""Columns of the dock with a number a token of the response, and verl's names."""


@dataclass
class TrainedRows:
    """The rows of a step that one rank was handed.

    Args:
        batches: as they were handed out: ids [b, s] and numbers [b, r], padded on the right.
        index: their rows in the dock.
        masks: of the losses of their micro-batches, as far as in the order of the rows.
    """

    batches: list[Mapping[str, Tensor]] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)

    def keep(self, batch: Mapping[str, Any], index: Any) -> None:
        """Take one batch; a copy of the mapping, which the worker goes on to change."""
        self.batches.append({k: v for k, v in batch.items() if isinstance(v, Tensor)})
        self.index += [int(row) for row in index]

    def tensors(self, pad: int, scores: Mapping[int, float]) -> dict[str, Tensor]:
        """Return the step's rows in verl's layout and by verl's names, on the host.

        Args:
            pad: id that stands where nothing is attended.
            scores: of rows of the dock.
        """
        needed = {"input_ids", "responses", *(f"{part}_length" for part in _PARTS)}
        if not self.batches or not all(needed <= set(batch) for batch in self.batches):
            return {}
        host = [{name: value.cpu() for name, value in b.items()} for b in self.batches]
        widths = [max(int(b[f"{part}_length"].max()) for b in host) for part in _PARTS]
        laid = [laid_out(batch, (widths[0], widths[1]), pad) for batch in host]
        names = set.intersection(*(set(each) for each in laid))
        joined = {name: torch.cat([each[name] for each in laid]) for name in sorted(names)}
        last = joined["response_mask"].sum(1) - 1
        if sum(map(len, self.masks)) == len(self.index):
            masks = [_wide(mask.cpu().long(), widths[1]) for mask in self.masks]
            joined["response_mask"] = torch.cat(masks)
        if scores.keys() >= set(self.index):
            rewards = torch.zeros(joined["response_mask"].shape)
            rewards[torch.arange(len(last)), last] = torch.tensor([scores[i] for i in self.index])
            joined["token_level_scores"] = joined["token_level_rewards"] = rewards
        return joined


_PARTS = ("prompt", "response")


def laid_out(batch: Mapping[str, Tensor], widths: tuple[int, int], pad: int) -> dict[str, Tensor]:
    """Return rows with prompts ending, and responses beginning, at one column.

    Args:
        batch: ids [b, s], padded on the right, the lengths of their parts, numbers [b, r].
        widths: columns of prompt and response.
    """
    prompts, answers = (batch[f"{part}_length"].reshape(-1, 1).long() for part in _PARTS)
    ids, place = batch["input_ids"].long(), torch.arange(sum(widths)) - widths[0]
    source = prompts + place
    attended = (source >= 0) & (place < answers)
    whole = ids.gather(1, source.clamp(0, ids.shape[1] - 1))
    mask = torch.arange(widths[1]) < answers
    own = batch.get("response_mask")
    return {
        "input_ids": torch.where(attended, whole, pad),
        "attention_mask": attended.long(),
        "responses": torch.where(mask, _wide(batch["responses"].long(), widths[1]), pad),
        "response_mask": (mask if own is None else mask & _wide(own, widths[1]).bool()).long(),
        **{
            ours: _wide(batch[name].float(), widths[1]) * mask
            for name, ours in _PER_TOKEN.items()
            if name in batch
        },
    }


def _wide(values: Tensor, width: int) -> Tensor:
    """Return values [b, r] in as many columns."""
    return torch.nn.functional.pad(values[:, :width], (0, max(0, width - values.shape[1])))


def trains_rows(worker: Any) -> bool:
    """Tell whether a rank is the one of those that train on the same rows which records them."""
    from dumps.capture.taps.mindspeed_rl import puts_rows

    rank = getattr(worker.parallel_state, "get_context_parallel_rank", None)
    return puts_rows(worker, False) and (rank is None or int(rank()) == 0)


def scores_of(worker: Any, rows: Sequence[int]) -> dict[int, float]:
    """Read the scores of rows from the dock, in which nothing changes; empty where it has none.

    Up to 2.1.0 the dock holds scores that are normalised within their group already; they stand
    in two columns there, and are no scores.
    """
    dock: Any = getattr(worker, "td", None)
    ray: Any = sys.modules.get("ray")
    if ray is None or not rows or not hasattr(dock, "get_experience_status"):
        return {}  # a transfer queue, which is asked otherwise
    status = ray.get(dock.get_experience_status.remote())

    def is_there(column: str) -> bool:
        return column in status and all(int(status[column][row]) == 1 for row in rows)

    if not is_there("rm_scores"):
        return {}
    columns = [name for name in ("rm_scores", "token_level_rewards") if is_there(name)]
    scores, *rewards = ray.get(dock._get.remote(columns, [*rows]))
    if rewards and all(each.numel() == 1 for each in rewards[0]):
        return {}
    return {row: float(score.sum()) for row, score in zip(rows, scores, strict=True)}
