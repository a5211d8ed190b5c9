"""Another number of devices is another number of shards, of rows or of tensors.

Source: ranks of one tensor-, pipeline- or context-parallel group hold the same rows; what they
share is how a sum is split, not which rows it is over.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf
from align.core.finding import Severity
from align.core.text import Text

FIELDS = ("trainer.world_size",)


def rule(case: Case) -> Ruling | None:
    """Call it harmless where as many ranks hold rows of their own."""
    first, second = case.numbers("derived.data_parallel_size")
    if first is None or first != second:
        return None
    return Ruling(
        Text(
            f"The rows are shared out over as many ranks ({first:g}) on both sides: tensors are "
            "split otherwise, and only rounding differs.",
            f"两侧都由同样多的 rank（{first:g}）分担各行：只是张量的切分不同，只有舍入不同。",
        ),
        Severity.INFO,
        instead=True,
    )


_TP: dict[str, ConfigLeaf] = {
    **{"actor.tensor_parallel_size": 2, "actor.pipeline_parallel_size": 1},
    "actor.context_parallel_size": 1,
}
_ALONE: dict[str, ConfigLeaf] = {**_TP, "actor.tensor_parallel_size": 1}
FIRES = (Example("trainer.world_size", (1, 2), reference=_ALONE, candidate=_TP),)
SILENT = (Example("trainer.world_size", (1, 2), both=_ALONE), Example("trainer.world_size", (1, 2)))
