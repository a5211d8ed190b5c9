"""Raw and processed log_probs are the same numbers where nothing processes them.

Source: trl#4159: the engine returned log_probs before the temperature, the trainer divides by it;
at temperature 0.6 the ratio of the first token was 2.0.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text

FIELDS = ("rollout.logprobs_mode",)

# Values at which a setting does nothing; min-p is off where an engine does not have it.
_OFF: dict[str, set[float | None]] = {
    "temperature": {1.0},
    "top_p": {1.0},
    "top_k": {-1.0, 0.0},
    "min_p": {0.0, None},
}


def rule(case: Case) -> Ruling | None:
    """Call it harmless where nothing is processed, and say what a temperature does."""
    if all(set(case.numbers(f"rollout.{name}")) <= off for name, off in _OFF.items()):
        return Ruling(
            Text(
                "At temperature 1 without top-p and top-k nothing is processed: both are the same.",
                "温度为 1 且未启用 top-p、top-k 时没有任何处理：两者相同。",
            ),
            Severity.INFO,
            Strength.NONE,
        )
    if set(case.numbers("rollout.temperature")) & {1.0, None}:
        return None
    return Ruling(
        Text(
            "The temperature is not 1: raw log_probs are not what training computes, and the ratio "
            "of the two has slope 1/T (trl#4159).",
            "温度不为 1：raw log_probs 不是训练侧计算的量，两者之间的斜率为 1/T（trl#4159）。",
        ),
        fix=Text(
            "Use processed_logprobs wherever rollout log_probs enter the loss.",
            "凡 rollout log_probs 参与损失计算时，均使用 processed_logprobs。",
        ),
    )


_MODES = ("raw_logprobs", "processed_logprobs")
_PLAIN = {"rollout.temperature": 1.0, "rollout.top_p": 1, "rollout.top_k": -1}
FIRES = (
    Example("rollout.logprobs_mode", _MODES, both=_PLAIN),
    Example("rollout.logprobs_mode", _MODES, both={**_PLAIN, "rollout.temperature": 0.6}),
)
SILENT = (
    Example("rollout.logprobs_mode", _MODES, both={**_PLAIN, "rollout.top_p": 0.8}),
    Example("rollout.logprobs_mode", _MODES),
)
