"""Long responses outlast the default timeouts of HCCL.

Source: Qwen3-235B report (long rollouts end in an HCCL timeout); MindSpeed-RL's runtime_env.yaml
sets HCCL_CONNECT_TIMEOUT 1800 and HCCL_EXEC_TIMEOUT 3600 seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import number

_LONG = 16_000
_WANTED = {"env.HCCL_CONNECT_TIMEOUT": 1800, "env.HCCL_EXEC_TIMEOUT": 3600}


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the timeouts with those of MindSpeed-RL where responses are long."""
    longest = run.longest_sequence
    if not run.on_npu or longest is None or longest < _LONG:
        return
    short = [name for name, least in _WANTED.items() if _is_short(run, name, least)]
    unknown = [name for name in _WANTED if name not in run.facts]
    if not short and not unknown:
        return
    names = ", ".join(name.removeprefix("env.") for name in short or unknown)
    yield problem(
        run,
        "hccl_timeout",
        Severity.WARNING if short else Severity.INFO,
        Effect(Rung.ENVIRONMENT, Strength.NONE),
        (*run.seen_facts(*short), *run.known("data.max_response_length")),
        Text(
            f"sequences of {shown(longest)} tokens, and {names} "
            + ("is short" if short else "is not recorded"),
            f"序列长达 {shown(longest)} 个 token，而 {names} " + ("较短" if short else "未被记录"),
        ),
        Text(
            "Cards that finish early wait for the longest response in a collective call and time "
            "out; the run stops in the middle.",
            "先完成的卡会在集合通信中等待最长的回复而超时，运行中途报错。",
        ),
        Text(
            "export HCCL_CONNECT_TIMEOUT=1800 HCCL_EXEC_TIMEOUT=3600 or more, and keep the "
            "interleave of input and output batches equal.",
            "export HCCL_CONNECT_TIMEOUT=1800 HCCL_EXEC_TIMEOUT=3600 或更大，"
            "并保持输入与输出 batch 的 interleave 一致。",
        ),
    )


def _is_short(run: OneRun, name: str, least: float) -> bool:
    seconds = number(run.fact(name))
    return seconds is not None and 0 < seconds < least


_LONG_RUN: Settings = {
    "trainer.device": "npu",
    "data.max_prompt_length": 2048,
    "data.max_response_length": 30720,
}
_SET = {"env.HCCL_CONNECT_TIMEOUT": "1800", "env.HCCL_EXEC_TIMEOUT": "3600"}
FIRES = (
    Example(_LONG_RUN, Severity.INFO),
    Example(_LONG_RUN, facts=_SET | {"env.HCCL_CONNECT_TIMEOUT": "120"}),
)
SILENT = (
    Example(_LONG_RUN, facts=_SET),
    Example(_LONG_RUN | {"data.max_response_length": 4096}),
    Example(_LONG_RUN | {"trainer.device": "cuda"}),
)
