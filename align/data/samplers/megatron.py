"""Megatron-core's GPT data set: documents shuffled over all epochs, then samples shuffled.

The last epoch is shuffled apart where only a part of it is needed. Samples are runs of tokens, so
that a sample is a document only where every document fills one.

Source: megatron-core 0.12 `_build_document_index`, `_build_shuffle_index`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from align.data.torch_generator import Int64


@dataclass(frozen=True, slots=True)
class MegatronGPT:
    """Order of documents where every document is one sample.

    Args:
        num_epochs: over all the run.
        separate_final_epoch: whether fewer than 80 % of the last epoch's samples are needed.
    """

    num_rows: int
    num_epochs: int
    seed: int
    separate_final_epoch: bool = False
    name: str = "Megatron GPTDataset"

    @property
    def epoch_length(self) -> int:
        """Samples of the whole run."""
        return self.num_rows * self.num_epochs

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return the only pass."""
        random = np.random.RandomState(self.seed)
        documents = document_index(
            self.num_rows, self.num_epochs, random, self.separate_final_epoch
        )
        first = self.epoch_length - (self.num_rows if self.separate_final_epoch else 0)
        return documents[shuffle_index(first, self.epoch_length, random)[:stop]]


def document_index(
    num_documents: int, num_epochs: int, random: np.random.RandomState, separate_final: bool
) -> Int64:
    """Return document numbers of all epochs, shuffled together; the last one apart if asked."""
    sizes = [num_epochs - 1, 1] if separate_final and num_epochs > 1 else [num_epochs]
    parts = [np.tile(np.arange(num_documents), size) for size in sizes]
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)


def shuffle_index(num_samples: int, total_size: int, random: np.random.RandomState) -> Int64:
    """Return a shuffle of [0, num_samples), then one of the rest, as `_build_shuffle_index`."""
    parts = [np.arange(num_samples)]
    if num_samples < total_size:
        parts.append(np.arange(num_samples, total_size))
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)
