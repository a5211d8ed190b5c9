"""Megatron-core's GPT data set: documents shuffled, laid end to end, cut into samples, shuffled.

Documents of all epochs are shuffled together. Where fewer than 80 % of the last epoch's samples are
needed it is shuffled apart, documents and samples alike. A sample is a run of tokens: it may begin
within a document and hold several.

Source: megatron-core 0.12 `GPTDataset._build_document_sample_shuffle_indices`, `build_sample_idx`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from align.data.torch_generator import Int64

_SEPARATE_BELOW = 0.80


@dataclass(frozen=True, slots=True, eq=False)
class MegatronIndices:
    """The three indices.

    Args:
        documents: document number at each place [epochs * documents].
        samples: place and offset in tokens at which each sample begins [samples + 1, 2].
        shuffle: sample number of each draw [samples].
    """

    documents: Int64
    samples: Int64
    shuffle: Int64


@dataclass(frozen=True, slots=True)
class MegatronGPT:
    """A row of a step is the document in which its sample begins; `documents` gives all of them.

    Args:
        lengths: tokens of every document.
        num_samples: ``train_iters * global_batch_size``.
        extra_token: whether a sample has one token more, the last label
            (``add_extra_token_to_sequence``).
    """

    lengths: tuple[int, ...]
    sequence_length: int
    num_samples: int
    seed: int
    extra_token: bool = True
    name: str = "Megatron GPTDataset"

    @property
    def epoch_length(self) -> int:
        """Samples of the whole run, of which it needs ``num_samples``."""
        return len(build_indices(self).shuffle)

    def epoch(self, number: int, stop: int | None = None) -> Int64:
        """Return the only pass."""
        indices = build_indices(self)
        first: Int64 = indices.documents[indices.samples[indices.shuffle[:stop], 0]]
        return first

    def documents(self, draw: int) -> list[int]:
        """Return the documents of a draw's sample, counted from 0, in their order."""
        indices = build_indices(self)
        sample = indices.shuffle[draw]
        first, last = indices.samples[sample : sample + 2, 0].tolist()
        found: list[int] = indices.documents[first : last + 1].tolist()
        return found


@lru_cache(maxsize=2)
def build_indices(data: MegatronGPT) -> MegatronIndices:
    """Draw documents and samples as Megatron does, in this order, from one numpy generator."""
    length, extra = data.sequence_length, int(data.extra_token)
    per_epoch = sum(data.lengths)
    needed = data.num_samples * length + extra
    num_epochs = max(1, -(-needed // per_epoch)) if per_epoch else 1
    before_last = ((num_epochs - 1) * per_epoch - extra) // length
    of_one_epoch = (per_epoch - extra) // length
    of_last = data.num_samples - before_last
    separate = num_epochs > 1 and of_last < int(_SEPARATE_BELOW * of_one_epoch)

    random = np.random.RandomState(data.seed)
    documents = _documents(len(data.lengths), num_epochs, random, separate)
    samples = _samples(np.array(data.lengths, np.int64)[documents], length, extra)
    total = len(samples) - 1
    shuffle = _shuffled(before_last if separate else total, total, random)
    return MegatronIndices(documents, samples, shuffle)


def _documents(
    num_documents: int, num_epochs: int, random: np.random.RandomState, separate: bool
) -> Int64:
    parts = [
        np.tile(np.arange(num_documents), size)
        for size in ([num_epochs - 1, 1] if separate else [num_epochs])
    ]
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)


def _samples(lengths: Int64, length: int, extra: int) -> Int64:
    """Cut documents laid end to end; with an extra token a border is where the next one begins."""
    ends = np.cumsum(lengths)
    starts = np.arange(max(0, int(ends[-1]) - extra) // length + 1, dtype=np.int64) * length
    places = np.searchsorted(ends, starts, side="right" if extra else "left")
    offsets = starts - (ends - lengths)[places]
    places[0], offsets[0] = 0, 0
    return np.stack([places, offsets], axis=1)


def _shuffled(num_first: int, total: int, random: np.random.RandomState) -> Int64:
    parts = [np.arange(num_first)]
    if num_first != total:
        parts.append(np.arange(num_first, total))
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)
