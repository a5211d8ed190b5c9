"""torch_npu is built for one torch release.

Source: Ascend Extension for PyTorch names its releases after the torch release they need; the
Qwen3-235B report pairs 2.7.1 with 2.7.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the first three numbers of both versions."""
    torch, extension = (_numbers(run.fact(name)) for name in ("torch", "torch_npu"))
    if torch is None or extension is None or torch == extension:
        return
    series = torch[:2] != extension[:2]
    yield problem(
        run,
        "torch_npu",
        Severity.ERROR if series else Severity.WARNING,
        Effect(Rung.ENVIRONMENT),
        run.seen_facts("torch_npu", "torch"),
        Text(
            f"torch_npu {run.fact('torch_npu')} with torch {run.fact('torch')}",
            f"torch_npu {run.fact('torch_npu')} 与 torch {run.fact('torch')} 不配套",
        ),
        Text(
            "torch_npu is compiled against one torch release: another series does not import, or "
            "calls functions of another signature.",
            "torch_npu 针对特定的 torch 版本编译：版本系列不同会无法导入，或调用签名不同的函数。",
        ),
        Text(
            f"pip install torch=={'.'.join(map(str, extension))}, or the torch_npu of torch "
            f"{run.fact('torch')}.",
            f"pip install torch=={'.'.join(map(str, extension))}，"
            f"或安装与 torch {run.fact('torch')} 配套的 torch_npu。",
        ),
    )


def _numbers(version: str | None) -> tuple[int, ...] | None:
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version or "")
    return tuple(int(part) for part in found.groups()) if found else None


FIRES = (
    Example(facts={"torch": "2.6.0", "torch_npu": "2.7.1"}, severity=Severity.ERROR),
    Example(facts={"torch": "2.7.0+cpu", "torch_npu": "2.7.1rc1"}),
)
SILENT = (
    Example(facts={"torch": "2.7.1+cpu", "torch_npu": "2.7.1.post1"}),
    Example(facts={"torch": "2.7.1"}),
)
