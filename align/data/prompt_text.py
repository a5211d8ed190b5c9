"""What a tokenizer makes of rows; another package of this stage knows how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from align.core.config_value import EffectiveConfig
from align.core.data_set import DataSet
from dumps.store.run_data import RunData

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class PromptText(Protocol):
    """Prompts of a data set as one run's template and tokenizer make them."""

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token id there is."""
        ...

    def rendered(self, data: DataSet) -> Sequence[str] | None:
        """Return the text of every prompt [n], with template; None where it cannot be made."""
        ...

    def lengths(self, data: DataSet) -> tuple[int, ...] | None:
        """Return the number of tokens of every prompt [n]; None where it cannot be known."""
        ...

    def decoded(self, rows: Sequence[npt.NDArray[np.integer[Any]]]) -> Sequence[str]:
        """Return the text of token ids [n], special tokens kept."""
        ...

    def told_again(self, texts: Sequence[str]) -> Sequence[str]:
        """Encode and decode texts [n], so that they can be set beside decoded ones."""
        ...


Prompts = Callable[[RunData, EffectiveConfig], PromptText | None]
"""Loads a run's tokenizer; None where its files do not hold one."""
