"""A replay buffer that hands out rows in the data set's order.

verl's own gives them as they arrive, so which mini-batch a row is in depends on the clock.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

queue: Any = import_module("transfer_queue")


class OrderedReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """Sorts a batch by index and number of the response."""

    def _materialize_batch(self, *args: object, **kwargs: object) -> Any:
        batch = super()._materialize_batch(*args, **kwargs)
        data = queue.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["index", "session_id"]
        )
        columns = [_listed(data.get(name)) for name in ("index", "session_id")]
        place = list(zip(*columns, strict=True))
        order = sorted(range(len(place)), key=place.__getitem__)
        batch.reorder(order)
        return batch


def _listed(column: Any) -> list[int]:
    return list(column.tolist() if hasattr(column, "tolist") else column)
