"""Older tensordict reads batches on NPU before they have arrived.

Source: Qwen3-235B report: .to("cpu") is non-blocking below 0.10.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import version_tuple


def check(run: OneRun) -> Iterator[Finding]:
    """Report tensordict below 0.10 on an NPU."""
    version = version_tuple(run.fact("tensordict"))
    if not run.on_npu or version is None or version >= (0, 10):
        return
    yield problem(
        run,
        "tensordict_copy",
        Severity.WARNING,
        Effect(Rung.TOKENS),
        run.seen_facts("tensordict"),
        Text(
            f"tensordict {run.fact('tensordict')} on an NPU",
            f"在 NPU 上使用 tensordict {run.fact('tensordict')}",
        ),
        Text(
            'Before 0.10.0 .to("cpu") does not wait for the copy: batches can hold old or zero '
            "values, differently in every run.",
            '0.10.0 之前 .to("cpu") 不等待拷贝完成：batch 中可能是旧值或零，且每次运行都不同。',
        ),
        Text("pip install 'tensordict>=0.10.0'", "pip install 'tensordict>=0.10.0'"),
    )


FIRES = (Example(facts={"device": "npu", "tensordict": "0.8.1"}),)
SILENT = (
    Example(facts={"device": "npu", "tensordict": "0.10.0"}),
    Example(facts={"device": "cuda", "tensordict": "0.8.1"}),
    Example(facts={"device": "npu"}),
)
