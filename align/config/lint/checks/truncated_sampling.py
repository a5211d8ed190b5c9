"""Training knows nothing of top-p, top-k and min-p.

Source: verl's key table (top_p is not applied to training log_probs; processed log_probs are
renormalised over the survivors); MindSpeed-RL's sampling default top_k 50.
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
    """Report a truncated sampling distribution, more severely where the loss compares with it."""
    cut = [
        *(v for v in run.known("rollout.top_p") if 0 < (run.number(v.field) or 0) < 1),
        *(v for v in run.known("rollout.top_k") if (run.number(v.field) or 0) > 0),
        *(v for v in run.known("rollout.min_p") if (run.number(v.field) or 0) > 0),
    ]
    if not cut or run.number("rollout.temperature") == 0:
        return
    loss = used_in_loss(run)
    names = ", ".join(f"{v.field.partition('.')[2]} = {shown(v.value)}" for v in cut)
    yield problem(
        run,
        "truncated_sampling",
        Severity.WARNING if loss else Severity.INFO,
        Effect(Rung.LOSS if loss else Rung.ROLLOUT, signature=MISMATCH_METRICS),
        cut,
        Text(
            f"responses are drawn from a truncated distribution ({names})",
            f"回复采样自被截断的分布（{names}）",
        ),
        Text(
            "The engine's log_probs are renormalised over the tokens that survive, training's are "
            "not, and the loss uses their ratio: it is biased for every token.",
            "引擎的 log_probs 在保留的 token 上重新归一化，而训练不会，且损失使用二者的比值："
            "每个 token 都有偏差。",
        )
        if loss
        else Text(
            "Training log_probs are of the whole distribution, so the data is slightly off-policy.",
            "训练的 log_probs 取自完整分布，因此数据略微 off-policy。",
        ),
        Text(
            "Sample from the whole distribution: top_p 1, top_k -1, min_p 0.",
            "从完整分布采样：top_p 1、top_k -1、min_p 0。",
        ),
    )


FIRES = (
    Example({"rollout.top_p": 0.9}, Severity.INFO),
    Example({"rollout.top_k": 50}, Severity.INFO, "mindspeed_rl"),
    Example({"rollout.top_p": 0.9, "loss.rollout_correction.rollout_is": "sequence"}),
)
SILENT = (
    Example({"rollout.top_p": 1, "rollout.top_k": -1, "rollout.min_p": 0.0}),
    Example({"rollout.top_p": 1.0, "rollout.top_k": 0}),
    Example({"rollout.top_p": 0.9, "rollout.temperature": 0}),
)
