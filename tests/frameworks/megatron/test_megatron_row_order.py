"""Our shuffles against Megatron-core's own index functions."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("megatron.core.datasets.gpt_dataset", reason="Megatron-core is not installed")

from megatron.core.datasets import gpt_dataset

from align.data.samplers.megatron import MegatronGPT, document_index, shuffle_index


@pytest.mark.parametrize("seed", [0, 1234])
@pytest.mark.parametrize(("num_documents", "num_epochs"), [(23, 1), (64, 3)])
@pytest.mark.parametrize("separate", [True, False])
def test_documents_and_samples_are_shuffled_as_megatron_does(
    seed: int, num_documents: int, num_epochs: int, separate: bool
) -> None:
    separate = separate and num_epochs > 1
    real, ours = np.random.RandomState(seed), np.random.RandomState(seed)
    documents = gpt_dataset._build_document_index(
        np.arange(num_documents), num_epochs, real, separate
    )
    assert documents.tolist() == document_index(num_documents, num_epochs, ours, separate).tolist()
    total = num_documents * num_epochs
    first = total - num_documents if separate else total
    samples = gpt_dataset._build_shuffle_index(first, total, real)
    assert samples.tolist() == shuffle_index(first, total, ours).tolist()
    order = MegatronGPT(num_documents, num_epochs, seed, separate).epoch(0)
    assert order.tolist() == documents[samples].tolist()
