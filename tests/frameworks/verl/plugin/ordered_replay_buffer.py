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
        place = list(zip(data["index"].tolist(), data["session_id"].tolist(), strict=True))
        order = sorted(range(len(place)), key=place.__getitem__)
        return queue.KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[batch.keys[i] for i in order],
            tags=[batch.tags[i] for i in order],
        )
