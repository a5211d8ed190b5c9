"""Quantities that follow from a configuration, computed the same way on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from align.config.derive.batches import batches
from align.config.derive.kl_penalty import kl_penalty
from align.config.derive.learning_rate import course, learning_rates
from align.config.derive.lengths import lengths
from align.config.derive.loss import loss
from align.core.config_value import EffectiveValue

__all__ = ["derive", "learning_rates"]


def derive(
    values: Mapping[str, EffectiveValue],
    framework: str | None = None,
    *,
    rows: int | None = None,
    prompt_lengths: Sequence[int] | None = None,
) -> dict[str, EffectiveValue]:
    """Compute every quantity whose inputs are all known.

    Args:
        values: effective values, fields of the common schema.
        framework: whose learning-rate schedule is meant.
        rows: of the training data, before its length filter; None where it is not at hand.
        prompt_lengths: tokens of each of those rows.
    """
    rows = len(prompt_lengths) if prompt_lengths is not None else rows
    derived = batches(values)
    derived |= lengths({**values, **derived}, rows, prompt_lengths)
    derived |= loss(values) | kl_penalty(values)
    return derived | course({**values, **derived}, framework)
