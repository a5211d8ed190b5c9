"""Where Megatron's optimizers keep what they step, on doubles around the real Adam.

`tests/frameworks/megatron_optimizers` runs Megatron's own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch
from torch import Tensor, nn

from dumps.capture.megatron_optimizer import loss_scale, moments, stepped
from dumps.store.tensor_records import Phase


def parameter(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.arange(1.0, 7.0).reshape(2, 3).to(dtype))


def stepped_adam(tensor: Tensor) -> torch.optim.Optimizer:
    """Return Adam after one step of a tensor with the gradient 1, 2, …."""
    tensor.grad = torch.arange(1.0, tensor.numel() + 1).reshape(tensor.shape).to(tensor.dtype)
    adam = torch.optim.AdamW([tensor], lr=0.1)
    adam.step()
    return adam


def first_moment(optimizer: Any, of: nn.Parameter) -> list[float]:
    return moments(optimizer, of)[Phase.FIRST_MOMENT].flatten().tolist()


def test_torchs_optimizer_steps_the_parameter_itself() -> None:
    own = parameter()
    adam = stepped_adam(own)
    assert stepped(adam, own) is None
    assert first_moment(adam, own) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert not moments(adam, parameter())


def test_a_float32_copy_of_a_parameter_is_what_is_stepped() -> None:
    own = parameter(torch.bfloat16)
    main = own.detach().clone().float()
    own.main_param = main  # type: ignore[attr-defined]
    megatron = SimpleNamespace(optimizer=stepped_adam(main))
    found = stepped(megatron, own)
    assert found is not None and found.dtype == torch.float32
    assert torch.equal(found, main)
    assert first_moment(megatron, own)[5] == pytest.approx(0.6)


def distributed(own: nn.Parameter, shard: Tensor) -> SimpleNamespace:
    adam = stepped_adam(shard)
    return SimpleNamespace(optimizer=adam, model_param_group_index_map={own: (0, 0)})


def test_a_flat_shard_is_found_by_its_place_in_the_groups() -> None:
    own, other = parameter(), parameter()
    megatron = distributed(own, own.detach().flatten()[4:6].clone())
    found = stepped(megatron, own)
    assert found is not None and found.shape == (2,)
    assert first_moment(megatron, own) == pytest.approx([0.1, 0.2])
    assert stepped(megatron, other) is None and not moments(megatron, other)


def test_a_chain_is_asked_for_the_one_that_has_the_parameter() -> None:
    own, expert = parameter(), parameter()
    parts = [distributed(own, own.detach().flatten()), distributed(expert, torch.ones(1))]
    chain = SimpleNamespace(chained_optimizers=[SimpleNamespace(optimizer=None), *parts])
    assert len(first_moment(chain, own)) == 6
    assert first_moment(chain, expert) == pytest.approx([0.1])


def test_moments_in_few_bits_are_read_with_their_scale() -> None:
    own = parameter()
    adam: Any = stepped_adam(own)
    adam.get_unscaled_state = lambda key, name: adam.state[key][name] * 4
    config = SimpleNamespace(use_precision_aware_optimizer=True)
    megatron = SimpleNamespace(
        optimizer=adam, config=config, model_param_group_index_map={own: (0, 0)}
    )
    assert first_moment(megatron, own)[0] == pytest.approx(0.4)


def test_the_scale_of_the_loss_is_that_of_a_scaler_alone() -> None:
    scaled = SimpleNamespace(grad_scaler=object(), get_loss_scale=lambda: torch.tensor([8.0]))
    plain = SimpleNamespace(grad_scaler=None, get_loss_scale=lambda: torch.ones(1))
    assert loss_scale(SimpleNamespace(chained_optimizers=[plain])) is None
    assert loss_scale(torch.optim.SGD([parameter()])) is None
    found = loss_scale(SimpleNamespace(chained_optimizers=[scaled]))
    assert found is not None and float(found) == 8.0
