"""verl's agent loop workers: the engine's client answers with the recorded response.

The framework's own agent loop runs around it: it templates the prompt, cuts the response, makes
masks and has the reward computed, all as it does without a replay.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from align.core.rollout_record import RolloutRecord
from dumps.inject.drivers.verl_state import STAMP
from dumps.inject.plan import Source
from dumps.inject.problem import Problem
from dumps.inject.replay import Replay


@dataclass
class _Asked:
    """The response that one agent loop is to get."""

    record: RolloutRecord
    step: int
    is_given: bool = False


_asked: ContextVar[_Asked | None] = ContextVar("align_replay_asked", default=None)


async def agent_loop(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run one agent loop for one response."""
    stamp = kwargs.pop(STAMP, "")
    if not stamp:
        return await original(self, *args, **kwargs)
    step, group, *sample = map(int, str(stamp).split(":"))
    number = sample[0] if sample else int(kwargs["session_id"])
    asked = _Asked(replay.record(step, group, number), step)
    token = _asked.set(asked)
    try:
        output = await original(self, *args, **kwargs)
    finally:
        _asked.reset(token)
    if not asked.is_given:
        replay.refuse([Problem("an agent loop ended without asking for its response", step)])
    return output


async def generate(
    replay: Replay,
    original: Any,
    self: Any,
    request_id: Any,
    *,
    prompt_ids: Any,
    sampling_params: Any,
    **kwargs: Any,
) -> Any:
    """Answer with the recorded response, once the prompt is seen to be the recorded one."""
    asked = _asked.get()
    if asked is None:
        return await original(
            self, request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs
        )
    if asked.is_given:
        text = "an agent loop asks several times for one response (turns or tools)"
        replay.refuse([Problem(text, asked.step)])
    own, recorded = [int(i) for i in prompt_ids], asked.record.prompt_ids
    if recorded is not None and own != list(recorded):
        place = next((i for i, (a, b) in enumerate(zip(own, recorded, strict=False)) if a != b), -1)
        text = f"a prompt reaches the engine with other ids than recorded, at token {place}"
        replay.refuse([Problem(text, asked.step)])
    asked.is_given = True
    return _token_output(replay, asked, bool(sampling_params.get("logprobs")))


async def compute_score(
    replay: Replay, original: Any, self: Any, outputs: Any, *args: Any, **kwargs: Any
) -> Any:
    """Take the recorded reward, or have it computed as without a replay."""
    asked = _asked.get()
    if asked is None or replay.plan.rewards is not Source.RECORDED:
        return await original(self, outputs, *args, **kwargs)
    assert asked.record.score is not None
    last = outputs[-1] if isinstance(outputs, list) else outputs
    last.reward_score = asked.record.score
    extras = asked.record.extras
    named = {k.removeprefix("reward/"): v for k, v in extras.items() if k.startswith("reward/")}
    last.extra_fields["reward_extra_info"] = named
    return await original(self, outputs, *args, **kwargs)


def _token_output(replay: Replay, asked: _Asked, asks_log_probs: bool) -> Any:
    replica = import_module("verl.workers.rollout.replica")
    record = asked.record
    fields: dict[str, Any] = {"token_ids": list(record.response_ids or ())}
    if asks_log_probs and replay.plan.log_probs is Source.RECORDED:
        fields["log_probs"] = None if record.log_probs is None else list(record.log_probs)
    known = replica.TokenOutput.model_fields
    if "stop_reason" in known:
        fields["stop_reason"] = "completed"
    if "extra_fields" in known:
        version = asked.step - 1  # of the weights: one sync a step
        names = ("global_steps", "min_global_steps", "max_global_steps")
        fields["extra_fields"] = dict.fromkeys(names, version)
    return replica.TokenOutput(**fields)
