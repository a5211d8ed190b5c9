"""Our indices against those of Megatron-core's own GPTDataset, its C++ included."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("megatron.core.datasets.helpers_cpp", reason="Megatron-core is not installed")

from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import Split

from align.data.row_order import RowOrder
from align.data.samplers.megatron import MegatronGPT, build_indices

LENGTHS = {
    "ragged": (5, 17, 3, 64, 1, 30, 9, 12, 40, 7),
    "one sample each": (16,) * 12,
    "empty ones": (0, 20, 0, 0, 33, 16, 0),
    "short": (1, 2, 1),
}


def real(lengths: tuple[int, ...], ours: MegatronGPT) -> GPTDataset:
    """Make a GPTDataset of lengths alone: document d is its number, again and again."""
    data = object.__new__(GPTDataset)
    data.indices = np.arange(len(lengths), dtype=np.int32)
    data.num_samples = ours.num_samples
    data.index_split = Split.train
    data.dataset = SimpleNamespace(
        sequence_lengths=np.array(lengths, np.int32),
        get=lambda d, offset=0, length=None: np.full(
            lengths[d] - offset if length is None else length, d
        ),
    )
    data.config = GPTDatasetConfig(  # without a blend of files: nothing is read or cached
        random_seed=ours.seed,
        sequence_length=ours.sequence_length,
        tokenizer=SimpleNamespace(vocab_size=len(lengths)),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        add_extra_token_to_sequence=ours.extra_token,
    )
    data._pad_token_id = -1
    found = data._build_document_sample_shuffle_indices()
    data.document_index, data.sample_index, data.shuffle_index = found
    return data


@pytest.mark.parametrize("seed", [1234, 7])
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("sequence_length", [4, 16, 23])
@pytest.mark.parametrize("num_samples", [1, 5, 12, 30, 61])
@pytest.mark.parametrize("name", list(LENGTHS))
def test_documents_samples_and_shuffle_are_megatrons_own(
    name: str, num_samples: int, sequence_length: int, extra: bool, seed: int
) -> None:
    lengths = LENGTHS[name]
    ours = MegatronGPT(lengths, sequence_length, num_samples, seed, extra)
    theirs, indices = real(lengths, ours), build_indices(ours)
    assert theirs.document_index.tolist() == indices.documents.tolist()
    assert theirs.sample_index.tolist() == indices.samples.tolist()
    assert theirs.shuffle_index.tolist() == indices.shuffle.tolist()
    assert ours.epoch_length == len(theirs.shuffle_index) >= num_samples
    order = RowOrder(ours, 1)
    for draw in range(ours.epoch_length):
        documents = theirs._query_document_sample_shuffle_indices(draw)[1].tolist()
        assert ours.documents(draw) == documents
        assert order.step(draw + 1).tolist() == documents[:1]
