"""What verl's driver process knows of a run while it is replayed into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dumps.inject.drivers.verl_prompts import Templating

STAMP = "align_replay"
"""Field that carries "step:group" or "step:group:sample" to the workers, which take it away."""

NAME = "driver-0"


@dataclass
class State:
    """One run.

    Args:
        trainer: of V0, whose step the batch of metrics does not say.
        makes: prompts of data set rows.
        uids: (step, group) of the prompts dealt out.
    """

    trainer: Any = None
    makes: Templating | None = None
    uids: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def templating(self) -> Templating:
        """How prompts are made, known once the run has begun."""
        assert self.makes is not None
        return self.makes

    def text_of(self, ids: Sequence[int]) -> str:
        """Decode without special tokens."""
        return str(self.templating.tokenizer.decode(list(ids), skip_special_tokens=True))


state = State()
