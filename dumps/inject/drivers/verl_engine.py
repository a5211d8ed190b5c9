"""verl 0.5 and 0.6 with ``rollout.mode=sync``: the vLLM engine inside a worker.

The worker's own code pads and masks; only the call of the engine is answered from the record.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from dumps.inject.plan import Source
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt
from dumps.inject.replay import Replay


def generate_sequences(
    replay: Replay, original: Any, self: Any, prompts: Any, **kwargs: Any
) -> Any:
    """Answer a worker's rows, which hold whole groups."""
    if prompts.meta_info.get("validate", False):
        return original(self, prompts, **kwargs)
    step, engine = int(prompts.meta_info["global_steps"]), self.inference_engine
    self.inference_engine = _Recorded(replay, step, engine, int(self.config.n))
    try:
        return original(self, prompts, **kwargs)
    finally:
        self.inference_engine = engine


class _Recorded:
    """Stands for ``vllm.LLM`` during one call."""

    def __init__(self, replay: Replay, step: int, engine: Any, num_samples: int) -> None:
        self._replay, self._step, self._engine, self._n = replay, step, engine, num_samples

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompts: Any, sampling_params: Any, **kwargs: Any) -> list[Any]:
        asked = [tuple(int(i) for i in p["prompt_token_ids"]) for p in prompts]
        counts = Counter(asked)
        if any(count % self._n for count in counts.values()):
            self._refuse("a worker holds part of a prompt's responses: use rollout.mode=async")
        rows: dict[tuple[int, ...], list[int]] = {}
        for ids, count in counts.items():
            groups = self._replay.give(self._step, [Prompt(ids)] * (count // self._n))
            if None in groups:
                self._refuse("--allow-missing needs rollout.mode=async")
            step = self._replay.step(self._step)
            assert step is not None
            rows[ids] = [row for g in groups if g is not None for row in step.groups[g].rows]
        return [self._output(rows[ids].pop(0)) for ids in asked]

    def _output(self, row: int) -> Any:
        step = self._replay.step(self._step)
        assert step is not None
        record = step.records[row]
        ids, log_probs = list(record.response_ids or ()), None
        if self._replay.plan.log_probs is Source.RECORDED and record.log_probs is not None:
            values = zip(ids, record.log_probs, strict=True)
            log_probs = [{i: SimpleNamespace(logprob=value)} for i, value in values]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, logprobs=log_probs)])

    def _refuse(self, text: str) -> None:
        self._replay.refuse([Problem(text, self._step)])
