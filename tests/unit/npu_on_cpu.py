"""An ``npu`` device made of PyTorch's own Python backend: every operation computes on the CPU.

It replaces the process's spare device type, so only a process of its own may call `install`.
Autograd, dispatch and device checks are PyTorch's; streams, pinned memory and speed are not there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME = "npu"


class NpuTensor(torch.Tensor):
    """A class of its own, so that `torch.nn.Parameter` leaves the tensor as it is."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl


_numbers: dict[int, torch.Tensor] = {}
"""Numbers on the CPU by the address of the tensor's storage, which autograd's copies share."""


class Matmul:
    """What torch_npu keeps at ``torch.npu.matmul``; counts the products made with HF32 on."""

    allow_hf32 = True
    reduced = 0


class Module(backend_registration._DummyBackendModule):
    """``torch.npu``."""

    matmul = Matmul()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Autocast asks for it."""
        return [torch.bfloat16, torch.float16]


def install() -> None:
    """Make the device known, and every operation that has a kernel of its own compute on it."""
    module = Module()
    backend_registration._setup_privateuseone_for_python_backend(NAME, module)
    library = torch.library.Library("aten", "IMPL")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and not has(name, "CompositeImplicitAutograd"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if operation is not None:
                library.impl(name.removeprefix("aten::"), _kernel(operation), "PrivateUse1")
    _kept.append(library)


_kept: list[Any] = []
_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}
_VIEWS = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}


def _kernel(operation: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if operation in _PRODUCTS and torch.npu.matmul.allow_hf32:  # type: ignore[attr-defined]
            Matmul.reduced += 1
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        own = {id(_on_cpu(tensor)): tensor for tensor in given}
        goes_to = kwargs.get("device")
        args, kwargs = tree_map(_on_cpu, (args, kwargs))
        made = torch.reshape(*args) if operation in _VIEWS else operation(*args, **kwargs)
        if goes_to is not None and goes_to.type != NAME:
            return made
        return tree_map(lambda value: _on_npu(value, own), made)

    return kernel


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type == NAME:
        return _numbers[value.untyped_storage()._cdata]
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value


def _on_npu(value: Any, own: dict[int, torch.Tensor]) -> Any:
    """Wrap what an operation made; what it was given and changed in place stays itself."""
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) in own:
        return own[id(value)]
    made = torch._C._acc.create_empty_tensor(value.shape, value.dtype)
    made.__class__ = NpuTensor
    _numbers[made.untyped_storage()._cdata] = value
    return made
