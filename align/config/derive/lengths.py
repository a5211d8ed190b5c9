"""How long training is, and how long a sequence can be."""

from __future__ import annotations

from collections.abc import Sequence

from align.config.derive.quantity import Values, derived, exact, number, numbers, value_of
from align.core.config_value import EffectiveValue

_LENGTHS = ("data.max_prompt_length", "data.max_response_length")


def lengths(
    values: Values, rows: int | None, prompt_lengths: Sequence[int] | None
) -> dict[str, EffectiveValue]:
    """Compute lengths of training and of sequences.

    Args:
        rows: of the training data, before its length filter.
        prompt_lengths: tokens of each row, where they are known.
    """
    made: dict[str, EffectiveValue] = {}
    kept = None if prompt_lengths is None else _rows_kept(values, prompt_lengths)
    rows = rows if kept is None else int(str(kept.value))
    found = [kept, _total_steps(values, rows), _epochs(values, rows), _length_limit(values)]
    made |= {value.field: value for value in found if value is not None}
    updates = _optimizer_steps({**values, **made})
    return made if updates is None else made | {updates.field: updates}


def rows_kept(length_filter: object, longest: float, prompt_lengths: Sequence[int]) -> int | None:
    """Count the rows a length filter keeps.

    Args:
        length_filter: as field data.length_filter states it.
        longest: max_prompt_length, in tokens.
    """
    if length_filter == "no filter":
        return len(prompt_lengths)
    if length_filter == "length <= max_prompt_length":
        return sum(length <= longest for length in prompt_lengths)
    if length_filter == "length < max_prompt_length":
        return sum(length < longest for length in prompt_lengths)
    return None


def _rows_kept(values: Values, prompt_lengths: Sequence[int]) -> EffectiveValue | None:
    inputs = ("data.length_filter", "data.max_prompt_length")
    longest = number(values, inputs[1])
    if longest is None:
        return None
    count = rows_kept(value_of(values, inputs[0]), longest, prompt_lengths)
    formula = "rows the length filter keeps"
    return None if count is None else derived("derived.rows_kept", count, inputs, formula, values)


def _total_steps(values: Values, rows: int | None) -> EffectiveValue | None:
    """Return the training steps: as set, else whole batches of the rows, in every epoch."""
    field = "derived.total_steps"
    stated = number(values, "trainer.total_steps")
    if stated is not None:
        return derived(field, exact(stated), ("trainer.total_steps",), "as set", values)
    inputs = ("data.train_batch_size", "trainer.total_epochs")
    sizes = numbers(values, inputs)
    if sizes is None or rows is None or sizes[0] <= 0:
        return None
    steps = int(rows // sizes[0]) * sizes[1]
    formula = f"{rows} rows // train_batch_size × total_epochs"
    return derived(field, exact(steps), inputs, formula, values)


def _epochs(values: Values, rows: int | None) -> EffectiveValue | None:
    """Return how often training passes over the data; the last batch of a pass is left out."""
    inputs = ("trainer.total_steps", "data.train_batch_size")
    sizes = numbers(values, inputs)
    if sizes is None or not rows or sizes[1] <= 0 or rows < sizes[1]:
        return None
    formula = f"total_steps / ({rows} rows // train_batch_size)"
    return derived("derived.epochs", exact(sizes[0] / (rows // sizes[1])), inputs, formula, values)


def _optimizer_steps(values: Values) -> EffectiveValue | None:
    inputs = ("derived.optimizer_steps_per_iteration", "derived.total_steps")
    sizes = numbers(values, inputs)
    if sizes is None:
        return None
    formula = "optimizer steps per training step × training steps"
    total = exact(sizes[0] * sizes[1])
    return derived("derived.optimizer_steps", total, inputs, formula, values)


def _length_limit(values: Values) -> EffectiveValue | None:
    """Return the smaller of prompt plus response and the engine's own limit, if it has one."""
    inputs = (*_LENGTHS, "rollout.max_model_len")
    parts = numbers(values, _LENGTHS)
    if parts is None or inputs[2] not in values:
        return None
    engine = number(values, inputs[2])
    limit = sum(parts) if engine is None else min(sum(parts), engine)
    formula = "min(max_prompt_length + max_response_length, max_model_len)"
    return derived("derived.length_limit", exact(limit), inputs, formula, values)
