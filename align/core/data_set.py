"""A data set: the rows a run can train on, in file order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

from align.core.metric import Skipped
from align.core.text import Text


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Rows column by column; row i is what a sampler calls i.

    Args:
        source: file the rows come from.
        format: name of the reader.
        prompts: [n], the text of each prompt before any template: the contents of a chat joined
            by line breaks, or the question. None where the file holds token ids.
        labels: [n], ground truth as text; None where a row has none, or the file has no such field.
        token_ids: [n] integer arrays, prompts that were tokenised when the file was made.
        label_ids: [n] integer arrays, labels in that form.
        chats: [n], (role, content) of every turn, where the rows are chats; a template needs them.
        system: [n], the system prompts, None where no row has one.
        skipped: rows that cannot be read, the first 100; ``num_skipped`` counts all. They keep
            their place as empty rows, so that later rows keep their number.
        notes: what was assumed, such as which field was taken for the prompt.
    """

    source: str
    format: str
    num_rows: int
    prompts: Sequence[str] | None = None
    labels: Sequence[str | None] | None = None
    token_ids: Sequence[npt.NDArray[np.integer]] | None = None
    label_ids: Sequence[npt.NDArray[np.integer]] | None = None
    chats: Sequence[tuple[tuple[str, str], ...]] | None = None
    system: Sequence[str | None] | None = None
    skipped: tuple[Skipped, ...] = ()
    num_skipped: int = 0
    notes: tuple[Text, ...] = ()

    def __len__(self) -> int:
        return self.num_rows
