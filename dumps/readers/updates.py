"""The updates of a step: ``updates/{step}.safetensors``, what each computes with and reports.

n rows as the updates visit them, u updates; rows are those of ``trainer_inputs/{step}``.

    rows, update, micro_batch   int64 [n]: row of the batch, its update and micro-batch from 0
    log_probs, entropys         float [n, r], of the model in that update
    actor/loss, actor/pg_loss … float64 [u], by the names of their metrics
"""

from __future__ import annotations

from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Reader
from dumps.readers.trainer_inputs import header, read

FORMAT = "updates"
REQUIRED = frozenset({"rows", "update", "micro_batch", "log_probs"})


def _sniff(glimpse: Glimpse) -> bool:
    return header(glimpse.head).keys() >= REQUIRED


READER = Reader(FORMAT, ArtifactKind.UPDATES, _sniff, read)
