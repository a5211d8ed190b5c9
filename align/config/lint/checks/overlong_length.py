"""The overlong penalty must count from the length at which responses are cut.

Source: mapping of the two frameworks' keys (rollout_max_tokens must equal max_tokens where
overlong_buffer_enable is on); verl's DAPO reward manager with its max_resp_len.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the penalty's length with the longest response, and its buffer with that length."""
    if not run.is_on("reward.overlong_penalty"):
        return
    length, longest = run.number("reward.overlong_max_length"), run.number(_RESPONSE)
    if length is not None and longest is not None and length != longest:
        yield problem(
            run,
            "overlong_length",
            Severity.WARNING,
            Effect(Rung.REWARD),
            run.known("reward.overlong_max_length", _RESPONSE),
            Text(
                f"the overlong penalty counts from {shown(length)} tokens, responses are cut at "
                f"{shown(longest)}",
                f"过长惩罚以 {shown(length)} 个 token 为上限，而回复在 {shown(longest)} 处截断",
            ),
            Text(
                "Below the cut every response is punished alike; above it none ever is."
                if length < longest
                else "Responses are cut before the penalty reaches its full size.",
                "低于截断长度时，超过上限的回复受到同样的惩罚。"
                if length < longest
                else "回复在惩罚达到最大之前就被截断。",
            ),
            Text(
                f"Set it to {shown(longest)}, the response length.",
                f"将其设为回复长度 {shown(longest)}。",
            ),
        )
    buffer = run.number("reward.overlong_buffer")
    limit = length if length is not None else longest
    if buffer is not None and limit is not None and buffer > limit:
        yield problem(
            run,
            "overlong_length.buffer",
            Severity.WARNING,
            Effect(Rung.REWARD),
            run.known("reward.overlong_buffer", "reward.overlong_max_length"),
            Text(
                f"the penalty's buffer of {shown(buffer)} tokens exceeds the response length",
                f"过长惩罚的缓冲长度 {shown(buffer)} 超过了回复长度",
            ),
            Text("Every response is punished, the empty one too.", "所有回复都会受到惩罚。"),
            Text("Make the buffer a part of the length.", "将缓冲长度设为小于回复长度。"),
        )


_RESPONSE = "data.max_response_length"
_ON = {
    "reward.overlong_penalty": True,
    "reward.overlong_max_length": 4096,
    "reward.overlong_buffer": 1024,
    _RESPONSE: 4096,
}
FIRES = (
    Example(_ON | {"reward.overlong_max_length": 2048}),
    Example(_ON | {"reward.overlong_buffer": 8192}),
)
SILENT = (Example(_ON), Example(_ON | {"reward.overlong_penalty": False, _RESPONSE: 512}))
