"""The trainer's log_probs computed again from given weights, and in bfloat16 beside it.

What bfloat16 makes of these weights and rows is the measure of the dtype that the run computed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from align.core.config_value import EffectiveConfig
from align.core.text import Text
from align.core.threshold import Threshold
from align.objective.log_probs import log_probs_from_logits
from align.referee.gradient_norms import SAME_LOG_PROBS
from align.referee.link import Link, LinkVerdict, not_recorded
from align.referee.probability_places import shift_of
from align.referee.step_batch import StepBatch
from align.weights.load_model import load_model

NAME = "log_probs, from the weights"
_MEASURED_ROWS = 4  # of bfloat16
_ROUNDING = Threshold(2.0, "two computations in bfloat16 that round apart, against float64 each")
_PRECISIONS = {"bfloat16": 1.0, "float16, TF32 or HF32": 2.0**-3, "float32": 2.0**-16}
"""Unit roundoff by that of bfloat16: errors are proportional to it in first order."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The weights a step began with, and how much of the step is computed again from them.

    Args:
        model: of Hugging Face, in float64 or float32.
        num_rows: so many rows, evenly spread over the batch; None for all.
        on_row: called with the number of rows there are, at each row that is done.
    """

    model: Any
    num_rows: int | None = None
    on_row: Callable[[int], None] = lambda num_rows: None


def even_sample(num_rows: int, wanted: int | None) -> list[int]:
    """Return the indices of ``wanted`` rows spread evenly over a batch: no draw, so no seed.

    The middle of each of ``wanted`` equal stretches, so that neither the first rows (one prompt's
    group) nor the last stand for all. All rows where as many are wanted, or None.
    """
    if wanted is None or wanted >= num_rows:
        return list(range(num_rows))
    return [(2 * n + 1) * num_rows // (2 * wanted) for n in range(wanted)]


def weights_link(batch: StepBatch, config: EffectiveConfig, given: Recomputation) -> Link:
    """Compare old_log_probs of every response token with those of a model: mean difference.

    Source: log softmax of logits / rollout.temperature, as verl and MindSpeed-RL compute them.
    """
    model = given.model
    stated = config.values.get("rollout.temperature")
    temperature = float(stated.value) if stated is not None else 1.0  # type: ignore[arg-type]
    declared = Text(
        f"log_softmax of logits / {temperature:g}", f"logits / {temperature:g} 的 log_softmax"
    )
    found = batch.get("input_ids", "attention_mask", "response_mask", "old_log_probs")
    if found is None:
        return not_recorded(NAME, declared, _NEEDS)
    chosen = even_sample(len(found[0]), given.num_rows)
    sampled = _sampled(chosen, len(found[0]))
    ids, attention, mask, recorded = (tensor[chosen] for tensor in found)
    if int(ids.max()) >= int(model.config.vocab_size):
        return Link(NAME, declared, LinkVerdict.UNKNOWN, note=_OTHER_VOCABULARY)
    own = mask != 0
    width, temperatures = mask.shape[1], (temperature, 1.0)
    computed, undivided = log_probs_of(model, ids, attention, width, temperatures, given.on_row)
    apart = _apart(computed, recorded, own)
    rows = slice(_MEASURED_ROWS)
    coarse = load_model(Path(model.name_or_path), "bfloat16", "sdpa")
    (rounded,) = log_probs_of(coarse, ids[rows], attention[rows], width, (temperature,))
    in_bfloat16 = _apart(rounded, computed[rows], own[rows])
    limit = max(SAME_LOG_PROBS.value, _ROUNDING.value * in_bfloat16)
    if apart <= limit:
        note = precision_note(_apart(recorded[rows], computed[rows], own[rows]), in_bfloat16)
        return Link(
            NAME, declared, LinkVerdict.AS_DECLARED, apart, 0.0, limit, _joined(note, sampled)
        )
    note = _OTHER
    if _apart(undivided, recorded, own) <= limit:
        note = _NO_TEMPERATURE
    elif shift_of(recorded.numpy(), computed.numpy(), own.numpy()) is not None:
        note = _SHIFTED
    return Link(NAME, declared, LinkVerdict.DIFFERS, apart, 0.0, limit, _joined(note, sampled))


def log_probs_of(
    model: Any,
    ids: Tensor,
    attention: Tensor,
    width: int,
    temperatures: Sequence[float],
    on_row: Callable[[int], None] = lambda num_rows: None,
) -> tuple[Tensor, ...]:
    """Compute log_probs of each row's last ``width`` tokens, 0 at padding, once a temperature.

    A row goes through the model by itself and without its padding, so that no more than one row's
    logits are in memory.

    Args:
        ids, attention: [b, p + r], of any dtype.
        on_row: called with b at each row that is done.

    Returns:
        float64 [b, r] a temperature.
    """
    found = torch.zeros(len(temperatures), *ids.shape, dtype=torch.float64)
    for row, attended in enumerate(attention.bool()):
        on_row(len(ids))
        tokens = ids[row, attended].long()
        if len(tokens) < 2:
            continue
        with torch.no_grad():
            logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1].double()
        for number, temperature in enumerate(temperatures):
            scaled = log_probs_from_logits(logits, tokens[1:], temperature=temperature)
            found[number, row, attended.nonzero().flatten()[1:]] = scaled
    return tuple(found[:, :, -width:])


def precision_note(apart: float, in_bfloat16: float) -> Text:
    """Say which dtype makes errors of this size.

    Args:
        apart: mean absolute difference of the recorded log_probs from float64, nats.
        in_bfloat16: the same of the model computed in bfloat16, over the same tokens.
    """
    ratio = apart / in_bfloat16 if in_bfloat16 > 0 else 0.0
    least = min(_PRECISIONS.values())
    size = math.log(max(ratio, least))
    dtype = min(_PRECISIONS, key=lambda name: abs(math.log(_PRECISIONS[name]) - size))
    return Text(
        f"errors of the size of {dtype} ({in_bfloat16:.2g} in bfloat16)",
        f"误差大小与 {dtype.replace(' or ', ' 或 ')} 相当（bfloat16 下为 {in_bfloat16:.2g}）",
    )


def _sampled(chosen: Sequence[int], num_rows: int) -> Text | None:
    if len(chosen) == num_rows:
        return None
    return Text(
        f"{len(chosen)} of {num_rows} rows, evenly spread",
        f"{num_rows} 行中均匀取 {len(chosen)} 行",
    )


def _joined(note: Text, more: Text | None) -> Text:
    return note if more is None else Text(f"{note.en}; {more.en}", f"{note.zh}；{more.zh}")


def _apart(one: Tensor, other: Tensor, own: Tensor) -> float:
    return float((one - other)[own].abs().mean()) if own.any() else 0.0


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
