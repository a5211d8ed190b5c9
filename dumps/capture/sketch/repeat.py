"""The tensor sketched last: a module's output is often its last child's, and is sketched once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from dumps.capture.sketch.sums import Sums


@dataclass
class Repeat:
    """Knows a tensor by its storage, which it does not keep alive, its place there and its version.

    While the weak reference is held, no other storage has the same address.
    """

    _storage: StorageWeakRef | None = None
    _place: tuple[Any, ...] = ()
    _sums: Sums | None = None

    def of(self, tensor: Tensor, keys: tuple[Any, ...], make: Callable[[], Sums]) -> Sums:
        """Return the sums of a tensor, made anew unless it was the last one.

        Args:
            keys: what else the sums depend on.
        """
        if tensor.is_inference() or _hides_changes():  # has no version, or one that says nothing
            return make()
        storage = tensor.untyped_storage()
        place = (
            *(storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()),
            *(tensor.dtype, tensor._version, keys),
        )
        if self._sums is not None and place == self._place:
            return replace(self._sums)
        made = make()
        self._storage = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._place, self._sums = place, made
        return made


def _hides_changes() -> bool:
    """Tell a forward pass without gradients, in which a tensor can change at the same version.

    Megatron then adds the residual in place, and `make_viewless_tensor` begins versions anew.
    """
    return not torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1
