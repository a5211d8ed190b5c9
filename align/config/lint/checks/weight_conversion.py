"""Hand-written weight conversion on NPU sends wrong weights to the rollout.

Source: vime issue 274: Qwen3-4B on 910B, train_rollout_logprob_abs_diff far above the GPU's from
step 0 with megatron_to_hf_mode raw, fixed by bridge.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report the known-bad mode on an NPU."""
    raw = [
        v
        for k, v in sorted(run.stated.items())
        if k.replace("-", "_").endswith("megatron_to_hf_mode") and v.value == "raw"
    ]
    if not run.on_npu or not raw:
        return
    yield problem(
        run,
        "weight_conversion",
        Severity.WARNING,
        Effect(Rung.WEIGHT_SYNC),
        raw,
        Text("megatron_to_hf_mode is raw on an NPU", "在 NPU 上 megatron_to_hf_mode 为 raw"),
        Text(
            "This conversion mixed up weights on Ascend: the train-rollout gap is large from the "
            "first step on and training does not converge.",
            "该转换在昇腾上曾弄错权重：从第一步起训推差异就很大，训练不收敛。",
        ),
        Text(
            "Use bridge, and compare the rollout's weights with the trainer's.",
            "改用 bridge，并对比 rollout 与训练的权重。",
        ),
    )


FIRES = (Example(stated={"megatron-to-hf-mode": "raw"}, facts={"device": "npu"}),)
SILENT = (
    Example(stated={"megatron-to-hf-mode": "bridge"}, facts={"device": "npu"}),
    Example(stated={"megatron-to-hf-mode": "raw"}, facts={"device": "cuda"}),
)
