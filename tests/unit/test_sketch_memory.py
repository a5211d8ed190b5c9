"""A sketch keeps nothing of a model alive, and its small results do not break up the heap."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from dumps.capture.failures import FailureLog
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.step import sketched_step
from dumps.store.tensor_records import Phase


class Doubled(nn.Module):
    """Two modules whose outputs autograd does not need: sums have constant gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.again = nn.Embedding(50, 8), nn.Identity()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.again(self.embed(input_ids) + 1) + 1


def test_no_output_of_a_module_outlives_its_forward_pass_for_the_sake_of_its_gradient(
    tmp_path: Path,
) -> None:
    model, seen = Doubled(), list[StorageWeakRef]()

    def see(module: nn.Module, args: object, output: torch.Tensor) -> None:
        seen.append(StorageWeakRef(output.untyped_storage()))

    with sketched_step(model, tmp_path, 1, FailureLog(tmp_path, "test")) as recorder:
        handle = model.again.register_forward_hook(see)
        output = model(input_ids=torch.arange(6).reshape(2, 3))
        gc.collect()
        assert [reference.expired() for reference in seen] == [True]
        output.sum().backward()
        handle.remove()
    assert ("again", Phase.GRADIENT, 0) in recorder.sums
    assert not (tmp_path / "capture.log").exists()


def test_results_of_many_addresses_share_a_piece_of_memory() -> None:
    recorder, weight = Recorder(), torch.randn(20, 30)
    for number in range(100):
        recorder.add_weight(f"w{number}", Phase.PARAMETER, weight)
    sums = recorder.sums.values()
    results = [result for one in sums for result in (one.products, one.squares, one.minimum)]
    assert len({result.untyped_storage().data_ptr() for result in results}) == 1
    assert len({id(one.digest) for one in sums}) == 1


def test_passes_in_inference_mode_and_outside_it_are_sketched_side_by_side() -> None:
    recorder, weight = Recorder(), torch.randn(20, 30)
    with torch.inference_mode():
        recorder.add_weight("a", Phase.PARAMETER, weight + 0)
    recorder.add_weight("b", Phase.PARAMETER, weight)
    with torch.inference_mode():
        recorder.add_weight("c", Phase.PARAMETER, weight + 0)
    first, *others = recorder.sums.values()
    for other in others:
        assert torch.equal(first.products, other.products)
        assert torch.equal(first.squares, other.squares)
