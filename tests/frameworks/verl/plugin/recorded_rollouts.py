"""An agent loop that gives recorded responses: equal rollouts in every run.

The tests that compare runs bit by bit need this, as the order in which requests reach an engine
decides what it samples. A row of the data set occurs once in these runs, so its index and the
number of the response to it name a response in both trainers.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import verl.models.transformers.monkey_patch as monkey_patch
from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

# verl asks TRL for a class that newer ones lack.
monkey_patch.is_trl_available = lambda: False

LINES = Path(os.environ["RECORDED_ROLLOUTS"]).read_text().splitlines()
ROWS = {row["key"].partition(":")[2]: row for row in map(json.loads, LINES)}  # "index:number"


class RecordedRollouts(SingleTurnAgentLoop):  # type: ignore[misc]
    """Asks no engine."""

    seen: ClassVar[Counter[int]] = Counter()

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        index = int(kwargs["index"])
        number = int(kwargs.get("session_id", self.seen[index]))  # the V0 trainer gives none
        self.seen[index] += 1
        return _output(ROWS[f"{index}:{number}"])


def _output(row: dict[str, Any]) -> AgentLoopOutput:
    return AgentLoopOutput(
        prompt_ids=row["prompt_ids"],
        response_ids=row["response_ids"],
        response_mask=[1] * len(row["response_ids"]),
        response_logprobs=row["logprobs"],
        num_turns=2,
        metrics={},
        extra_fields={
            **{"turn_scores": [], "tool_rewards": [], "global_steps": row["w"]},
            **{"min_global_steps": row["w"], "max_global_steps": row["w"]},
        },
    )
