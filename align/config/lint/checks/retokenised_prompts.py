"""MindSpeed-RL's synchronous rollout loses special tokens of the prompt.

Source: since cb82020 (2025-12-13, on master) the synchronous path sends text decoded without
special tokens to vLLM; branches 2.0.0 to 2.3.0 and the asynchronous path send ids.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_MASTER = ("master", "main")


def check(run: OneRun) -> Iterator[Finding]:
    """Report the synchronous path on master, or where the version is not known."""
    stated = run.config.framework_version if run.states_version else None
    if run.framework != "mindspeed_rl" or run.value("rollout.mode") != "sync":
        return
    if stated is not None and stated not in _MASTER:
        return
    certain = stated in _MASTER
    yield problem(
        run,
        "retokenised_prompts",
        Severity.ERROR if certain else Severity.INFO,
        Effect(Rung.ROLLOUT),
        run.known("rollout.mode"),
        Text(
            "synchronous rollout: prompts are decoded and encoded again",
            "同步 rollout：prompt 会被解码后重新编码",
        ),
        Text(
            "From 2025-12-13 on (master) the engine gets text without special tokens such as "
            "<|im_start|>, while training uses the original ids: responses answer another prompt "
            "than the one trained on."
            + ("" if certain else " The run does not state its version; 2.0.0 to 2.3.0 send ids."),
            "2025-12-13 之后的 master 会把去掉 <|im_start|> 等特殊 token 的文本送入引擎，"
            "而训练仍使用原始 id：回复对应的 prompt 与训练的不同。"
            + ("" if certain else "该运行未说明版本；2.0.0 至 2.3.0 传递的是 id。"),
        ),
        Text(
            "Set rl_config.async_engine: true, or use a release branch up to 2.3.0.",
            "设置 rl_config.async_engine: true，或使用 2.3.0 及以前的发布分支。",
        ),
    )


FIRES = (
    Example({"rollout.mode": "sync"}, Severity.ERROR, "mindspeed_rl", "master"),
    Example({"rollout.mode": "sync"}, Severity.INFO, "mindspeed_rl", None),
)
SILENT = (
    Example({"rollout.mode": "sync"}, framework="mindspeed_rl", version="2.3.0"),
    Example({"rollout.mode": "async"}, framework="mindspeed_rl", version="master"),
    Example({"rollout.mode": "sync"}, version=None),
)
