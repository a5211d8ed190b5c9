"""An agent loop that writes down what the engine generates, or gives it again: equal rollouts.

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

FILE = Path(os.environ["RECORDED_ROLLOUTS"])


class RecordedRollouts(SingleTurnAgentLoop):
    """Records while the file is not there yet as the process starts, replays otherwise."""

    given: ClassVar[dict[str, Any] | None] = None
    seen: ClassVar[Counter[int]] = Counter()

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        index = int(kwargs["index"])
        sample = int(kwargs.get("session_id", self.seen[index]))  # the V0 trainer gives none
        self.seen[index] += 1
        key = f"{index}:{sample}"
        if RecordedRollouts.given is None:
            lines = FILE.read_text().splitlines() if FILE.exists() else []
            RecordedRollouts.given = {row["key"]: row for row in map(json.loads, lines)}
        if key in RecordedRollouts.given:
            return _output(RecordedRollouts.given[key])
        output = await super().run(sampling_params, **kwargs)
        row = {
            "key": key,
            "prompt_ids": output.prompt_ids,
            "response_ids": output.response_ids,
            "log_probs": output.response_logprobs,
            "fields": output.extra_fields,
        }
        with FILE.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return output


def _output(row: dict[str, Any]) -> AgentLoopOutput:
    return AgentLoopOutput(
        prompt_ids=row["prompt_ids"],
        response_ids=row["response_ids"],
        response_mask=[1] * len(row["response_ids"]),
        response_logprobs=row["log_probs"],
        num_turns=2,
        metrics={},
        extra_fields=dict(row["fields"]),
    )
