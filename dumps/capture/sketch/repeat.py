"""The tensor sketched last: a module's output is often its last child's, and is sketched once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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
        if tensor.is_inference():  # has no version
            return make()
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        place = (
            *(tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype),
            *(tensor._version, keys),
        )
        if self._sums is None or storage != self._storage or place != self._place:
            self._storage, self._place, self._sums = storage, place, make()
            return self._sums
        return replace(self._sums)
