"""A tensor that was just sketched is known again, unless it may have changed since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from torch import Tensor

from dumps.capture.sketch import recorder as recorder_module
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.sums import Sums, sums_of
from dumps.capture.sketch.token_keys import tokens_of
from dumps.store.tensor_records import Phase

TOKENS = tokens_of(torch.arange(6)[None])


def viewless(tensor: Tensor) -> Tensor:
    """Return a tensor on the same memory whose version begins anew.

    Source: megatron.core.utils.make_viewless_tensor.
    """
    made = torch.empty((1,), dtype=tensor.dtype)
    made.data = tensor.data
    return made


def test_what_is_added_in_place_to_a_module_output_is_seen_without_gradients() -> None:
    """Megatron's layer adds the residual to its MLP's output where no gradient is asked for."""
    recorder, output = Recorder(), torch.ones(6, 4)
    with torch.no_grad():
        recorder.add_tokens("mlp", Phase.FORWARD, viewless(output), TOKENS, output.shape)
        output.add_(2)
        recorder.add_tokens("layer", Phase.FORWARD, viewless(output), TOKENS, output.shape)
    assert [float(sums.maximum) for sums in recorder.sums.values()] == [1.0, 3.0]


def test_a_tensor_that_several_modules_put_out_is_sketched_once_where_it_has_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Tensor] = []
    monkeypatch.setattr(recorder_module, "sums_of", counted(made))
    recorder, output = Recorder(), torch.ones(6, 4)
    for name in ("down_proj", "mlp"):
        recorder.add_tokens(name, Phase.FORWARD, output, TOKENS, output.shape)
    assert len(made) == 1
    output.add_(2)
    recorder.add_tokens("layer", Phase.FORWARD, output, TOKENS, output.shape)
    assert len(made) == 2


def counted(made: list[Tensor]) -> Callable[..., Sums]:
    def called(tensor: Tensor, *args: Any, **kwargs: Any) -> Sums:
        made.append(tensor)
        return sums_of(tensor, *args, **kwargs)

    return called
