"""A preloaded library of another architecture is not loaded.

Source: Qwen3-235B report: jemalloc from /usr/lib/aarch64-linux-gnu, useful on Arm only.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_ARCHITECTURE = ("arch", "machine", "architecture")
_X86 = ("x86_64", "amd64", "x86")


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the folder of a preloaded library with the processor."""
    preload = run.fact("env.LD_PRELOAD") or ""
    machine = next((run.fact(n) for n in _ARCHITECTURE if n in run.facts), None)
    on_x86 = machine is not None and machine.lower() in _X86
    if "aarch64" not in preload or not on_x86:
        return
    yield problem(
        run,
        "jemalloc",
        Severity.INFO,
        Effect(Rung.ENVIRONMENT, Strength.NONE),
        run.seen_facts("env.LD_PRELOAD", *_ARCHITECTURE),
        Text(
            "LD_PRELOAD names a library for Arm on an x86 machine",
            "在 x86 机器上 LD_PRELOAD 指向了 Arm 的库",
        ),
        Text(
            "The loader prints an error for every process and goes on without it; on x86 jemalloc "
            "brings nothing.",
            "加载器会对每个进程报错并忽略该库；在 x86 上 jemalloc 没有收益。",
        ),
        Text("unset LD_PRELOAD", "unset LD_PRELOAD"),
    )


_ARM = "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"
FIRES = (Example(facts={"env.LD_PRELOAD": _ARM, "arch": "x86_64"}, severity=Severity.INFO),)
SILENT = (
    Example(facts={"env.LD_PRELOAD": _ARM, "arch": "aarch64"}),
    Example(facts={"env.LD_PRELOAD": _ARM}),
    Example(facts={"arch": "x86_64"}),
)
