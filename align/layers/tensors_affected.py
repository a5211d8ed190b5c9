"""Which tokens, heads and features of a whole tensor differ."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from align.core.text import Text, joined
from align.layers.exact import Values
from align.layers.tensors_pair import WholePair
from dumps.store.tensor_records import Phase

if TYPE_CHECKING:
    import numpy.typing as npt

    Float64 = npt.NDArray[np.float64]
    Bools = npt.NDArray[np.bool_]

_IN_HEADS = ("*.q_proj", "*.k_proj", "*.v_proj")
_CLOSES_HEADS = "*.o_proj"
_FEW = 0.5
"""A share of the features below which they are named; of more it is said that all differ."""
SMALL = 0.1
"""Of the root mean square row or column: one smaller than that is measured by it."""


def affected_text(pair: WholePair, limit: float, head_dim: int | None) -> Text:
    """Say what differs beyond a limit, as two clauses: of features, and of tokens.

    Args:
        limit: relative error that rounding explains.
        head_dim: features of one attention head, None where it is not known.
    """
    own, error = differences(pair)
    rows = _beyond(error, own, 1, limit)
    columns = _beyond(error, own, 0, limit)
    if not rows.any() or not columns.any():
        return Text("", "")
    clauses = joined((_features(pair, columns, head_dim), _tokens(pair, rows)))
    return Text(f" Affected: {clauses.en}.", f"受影响的是：{clauses.zh}。")


def differences(pair: WholePair) -> tuple[Float64, Float64]:
    """Return the reference, and what the candidate adds to it, float64 [tokens, features].

    Where a number of the reference is not finite it counts as 0; an error that is not is infinite.
    """
    own, other = _float64(pair.reference), _float64(pair.candidate)
    with np.errstate(invalid="ignore"):
        error = other - own
    same = (own == other) | (np.isnan(own) & np.isnan(other))
    error = np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf))
    return np.where(np.isfinite(own), own, 0.0), error


def _float64(values: Values) -> Float64:
    raw = values.raw
    if values.dtype == "bfloat16":
        raw = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float64)


def _beyond(error: Float64, own: Float64, axis: int, limit: float) -> Bools:
    """Tell which rows (axis 1) or columns (axis 0) have an error beyond the limit."""
    size, scale = np.sqrt((error**2).sum(axis)), np.sqrt((own**2).sum(axis))
    usual = float(np.sqrt((scale**2).mean()))
    beyond: Bools = size > limit * np.maximum(scale, SMALL * usual)
    return beyond


def is_in_heads(pair: WholePair, head_dim: int | None) -> bool:
    """Tell whether a tensor's features are those of attention heads, one after the other."""
    name, phase, _ = pair.address
    if phase == Phase.INPUT:
        found = fnmatchcase(name, _CLOSES_HEADS)
    else:
        found = any(fnmatchcase(name, pattern) for pattern in _IN_HEADS)
    return found and bool(head_dim) and pair.reference.raw.shape[1] % int(head_dim or 1) == 0


def _features(pair: WholePair, columns: Bools, head_dim: int | None) -> Text:
    total, numbers = len(columns), np.flatnonzero(columns)
    if head_dim and is_in_heads(pair, head_dim):
        heads = sorted({int(number) // head_dim for number in numbers})
        count = total // head_dim
        if len(heads) <= _FEW * count:
            listed = spans(heads)
            return Text(f"heads {listed} of {count}", f"{count} 个头中的第 {listed} 个")
        return Text(f"{len(heads)} of {count} heads", f"{count} 个头中的 {len(heads)} 个")
    if len(numbers) > _FEW * total:
        return Text(f"{len(numbers)} of {total} features", f"{total} 个特征中的 {len(numbers)} 个")
    listed = spans([int(number) + pair.first_feature for number in numbers])
    return Text(
        f"features {listed} of {total}{_shard(numbers, total, 'en')}",
        f"{total} 个特征中的第 {listed} 个{_shard(numbers, total, 'zh')}",
    )


def _shard(numbers: npt.NDArray[np.int64], total: int, lang: str) -> str:
    """Say whose features these are if they are just those of one of 2, 4 or 8 ranks."""
    first, count = int(numbers[0]), len(numbers)
    is_run = int(numbers[-1]) - first == count - 1
    if not is_run or total % count or first % count or total // count not in (2, 4, 8):
        return ""
    rank, ranks = first // count, total // count
    if lang == "zh":
        return f"（恰为 {ranks} 路张量并行中 rank {rank} 的部分）"
    return f" (just those of tensor-parallel rank {rank} of {ranks})"


def _tokens(pair: WholePair, rows: Bools) -> Text:
    places, packed, total = pair.places, pair.packed.astype(bool), len(rows)
    count = int(rows.sum())
    if count == total:
        return Text(f"all {total} tokens", f"全部 {total} 个 token")
    if (places < 0).any():
        return Text(f"{count} of {total} tokens", f"{total} 个 token 中的 {count} 个")
    least = int(places[rows].min())
    here, others = places[rows], places[~rows]
    if int(here.max()) == 0 and bool((others > 0).all()):
        return Text(
            "the first token of every sequence, and no other", "每条序列的首个 token，别无其他"
        )
    if packed.any() and not rows[~packed].any():
        return Text(
            f"{count} of {total} tokens, all in sequences packed behind another one",
            f"{total} 个 token 中的 {count} 个，均位于排在其他序列之后的 packed 序列中",
        )
    if least > 0 and bool((others < least).all()):
        return Text(
            f"all tokens from position {least} of their sequence on",
            f"各序列中从位置 {least} 起的全部 token",
        )
    return Text(
        f"{count} of {total} tokens, at positions {spans(sorted(set(here.tolist())))}",
        f"{total} 个 token 中的 {count} 个，位置 {spans(sorted(set(here.tolist())))}",
    )


def spans(numbers: list[int], most: int = 4) -> str:
    """Return "1-3, 7"; the first few ranges of many."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    listed = [f"{a}" if a == b else f"{a}-{b}" for a, b in found[:most]]
    return ", ".join(listed) + (", …" if len(found) > most else "")
