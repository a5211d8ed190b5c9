"""What the steps of `one_step` are of."""

from __future__ import annotations

from typing import NamedTuple

LEARNING_RATE, CLIP, SCALE = 1e-4, 1.0, 64.0


class Case(NamedTuple):
    """An optimizer of Megatron's.

    Args:
        data: data-parallel ranks.
    """

    dtype: str
    data: int = 1
    distributed: bool = False

    @property
    def label(self) -> str:
        return f"{self.dtype}-{self.data}{'-distributed' if self.distributed else ''}"


PLAIN = Case("float32")
CASES = (
    PLAIN,
    Case("float32", 2),
    Case("float32", 2, distributed=True),
    Case("bfloat16"),
    Case("bfloat16", 2, distributed=True),
    Case("float16"),
    Case("float16", 2, distributed=True),
)
