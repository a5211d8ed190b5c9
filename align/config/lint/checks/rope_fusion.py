"""Fused rotary embedding needs two switches on NPU, and rounds otherwise everywhere.

Source: Qwen3-235B report and verl's performance guide for Ascend (apply_rope_fusion with
use_fused_rotary_pos_emb); NeMo-RL issue 1801: with Megatron's fusions every one of 109 steps had
token_mult_prob_error above 1.05, without rope fusion 24.6 %, while the reward did not show it.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem
from align.config.schema.rollout import MISMATCH_METRICS
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_FUSION, _FUSED = "actor.precision_options.apply_rope_fusion", "model.fused_rope"


def check(run: OneRun) -> Iterator[Finding]:
    """Report the first switch without the second, and the fusion as a known source of a gap."""
    if not run.is_on(_FUSION):
        return
    half = run.on_npu and not run.is_on(_FUSED)
    yield problem(
        run,
        "rope_fusion",
        Severity.WARNING if half else Severity.INFO,
        Effect(Rung.FORWARD, Strength.NUMERIC, MISMATCH_METRICS),
        run.known(_FUSION, _FUSED),
        Text(
            "apply_rope_fusion is on without use_fused_rotary_pos_emb",
            "开启了 apply_rope_fusion，但未开启 use_fused_rotary_pos_emb",
        )
        if half
        else Text("the rotary embedding is fused", "旋转位置编码使用融合算子"),
        Text(
            "MindSpeed fuses only where both are set; with one of them the run keeps the separate "
            "kernels, or fails.",
            "只有两项都设置 MindSpeed 才会融合；仅设置一项时仍使用分立算子，或报错。",
        )
        if half
        else Text(
            "Fused kernels keep bfloat16 intermediates where the rollout engine uses float32: "
            "elsewhere this raised the train-rollout gap from step to step while the reward looked "
            "equal.",
            "融合算子的中间结果为 bfloat16，而推理引擎使用 float32："
            "在其他框架中曾使训推差异逐步增大，而 reward 看不出差别。",
        ),
        Text(
            "Add +override_transformer_config.use_fused_rotary_pos_emb=True, or remove "
            "apply_rope_fusion.",
            "增加 +override_transformer_config.use_fused_rotary_pos_emb=True，"
            "或去掉 apply_rope_fusion。",
        )
        if half
        else Text(
            "Switch it off once, to see whether a train-rollout gap goes away.",
            "可暂时关闭，观察训推差异是否消失。",
        ),
    )


FIRES = (
    Example({_FUSION: True, "trainer.device": "npu"}),
    Example({_FUSION: True, _FUSED: True, "trainer.device": "npu"}, Severity.INFO),
    Example({_FUSION: True, "trainer.device": "cuda"}, Severity.INFO),
)
SILENT = (Example({_FUSION: False, "trainer.device": "npu"}), Example())
