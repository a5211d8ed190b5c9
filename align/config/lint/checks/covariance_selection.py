"""Clip-Cov and KL-Cov choose their tokens within a micro-batch.

Source: verl issue 7829.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_MODES = ("kl_cov", "clip_cov")


def check(run: OneRun) -> Iterator[Finding]:
    """Report the losses that depend on the micro-batch."""
    if run.value("loss.mode") not in _MODES:
        return
    mode = shown(run.value("loss.mode"))
    yield problem(
        run,
        "covariance_selection",
        Severity.INFO,
        Effect(Rung.LOSS),
        run.known("loss.mode", "actor.micro_batch_size", "actor.dynamic_batch"),
        Text(f"loss {mode} depends on the micro-batch", f"{mode} 损失取决于 micro-batch"),
        Text(
            "Tokens are chosen by their covariance within one micro-batch: another micro-batch "
            "size, packing or number of cards trains on other tokens.",
            "token 按其在单个 micro-batch 内的协方差选取："
            "micro-batch 大小、打包方式或卡数不同，被选的 token 就不同。",
        ),
        Text("Keep micro-batches equal in both runs.", "两次运行保持相同的 micro-batch 划分。"),
    )


FIRES = (Example({"loss.mode": "kl_cov"}, Severity.INFO),)
SILENT = (Example({"loss.mode": "vanilla"}),)
