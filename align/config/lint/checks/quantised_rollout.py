"""A quantised rollout engine samples from another model.

Source: verl's rollout.quantization and its rollout correction.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.config.lint.rollout_log_probs import used_in_loss
from align.config.schema.rollout import MISMATCH_METRICS
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report quantisation, less severely where the loss corrects for it."""
    if run.value("rollout.quantization") in (None, "none", False, ""):
        return
    corrected = used_in_loss(run)
    yield problem(
        run,
        "quantised_rollout",
        Severity.INFO if corrected else Severity.WARNING,
        Effect(Rung.ROLLOUT, signature=MISMATCH_METRICS),
        run.known("rollout.quantization"),
        Text(
            f"the rollout engine is quantised ({shown(run.value('rollout.quantization'))})",
            f"推理引擎使用了量化（{shown(run.value('rollout.quantization'))}）",
        ),
        Text(
            "Responses come from a coarser model than the one trained, a standing off-policy gap"
            + ("; rollout correction is on." if corrected else " that nothing corrects."),
            "回复来自比训练模型更粗糙的模型，始终存在 off-policy 差距"
            + ("；已开启 rollout 修正。" if corrected else "，且没有任何修正。"),
        ),
        Text(
            "Switch quantisation off for a comparison, or set "
            "algorithm.rollout_correction.rollout_is.",
            "对比时关闭量化，或设置 algorithm.rollout_correction.rollout_is。",
        ),
    )


FIRES = (
    Example({"rollout.quantization": "fp8"}),
    Example(
        {"rollout.quantization": "fp8", "loss.rollout_correction.rollout_is": "token"},
        Severity.INFO,
    ),
)
SILENT = (Example({"rollout.quantization": None}), Example())
