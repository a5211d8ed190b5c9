"""The recipe's rollout engine, telling a capture what it holds; it can skip a tensor of each sync.

``SKIPPED_WEIGHT`` names the tensor.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from dumps.capture.session import current
from dumps.capture.taps.verl_engine import record_loaded

_server: Any = import_module("verl_cpu_rollout").HFServer
SKIPPED = os.environ.get("SKIPPED_WEIGHT")


class LookedAtServer(_server):  # type: ignore[misc]
    """Calls `record_loaded` after each sync, as an engine that verl does not have would."""

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
        super().__init__(config, model_config, replica_rank)
        self.replica_rank = replica_rank

    async def load_weights(self, weights: dict[str, Any]) -> Any:
        result = await super().load_weights({n: t for n, t in weights.items() if n != SKIPPED})
        session = current()
        if session is not None:
            with session.log.kept("rollout engine"):
                config = self.model.config.to_dict()
                record_loaded(session, self.model, config, replica=self.replica_rank)
        return result
