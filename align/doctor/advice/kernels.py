"""Advice on MindSpeed's fused kernels."""

from __future__ import annotations

from collections.abc import Callable

from align.core.rung import Rung
from align.core.text import Text
from align.doctor.advice.advice import (
    DEVICE_UNKNOWN,
    NOT_ON_NPU,
    SEED_235B,
    Advice,
    Answer,
    advised,
    does_not_apply,
    is_on,
    unknown,
)
from align.doctor.case import Case, NotStated, Setting, megatron_override
from align.doctor.timing import Stage

_OVERRIDE = "+actor_rollout_ref.actor.megatron.override_transformer_config"
_RMS_NORM = megatron_override("use_fused_rmsnorm", "model.fused_rms_norm")
_SWIGLU = megatron_override("use_fused_swiglu", "model.fused_swiglu")
_ROPE = megatron_override("use_fused_rotary_pos_emb", "model.fused_rope")
_ROPE_FUSION = megatron_override("apply_rope_fusion")
_GROUPED = megatron_override("moe_grouped_gemm", "model.grouped_gemm")

_NO_MEGATRON = does_not_apply(
    "only with Megatron or MindSpeed; with FSDP verl patches its fused kernels in by itself",
    "仅适用于 Megatron/MindSpeed；FSDP 下 verl 会自动替换融合算子",
)
_DENSE = does_not_apply("the model has no experts", "模型没有专家层")


def _on_megatron_npu(case: Case) -> Answer | None:
    """Return why a kernel of MindSpeed cannot be advised, None where it can."""
    if case.on_npu is not True:
        return DEVICE_UNKNOWN if case.on_npu is None else NOT_ON_NPU
    if case.on_megatron is not True:
        return unknown("actor.strategy") if case.on_megatron is None else _NO_MEGATRON
    return None


def _fused(name: str, *settings: Setting, moe: bool = False) -> Callable[[Case], Answer]:
    """Return the judge of a fused kernel that all of ``settings`` switch on."""

    def answer(case: Case) -> Answer:
        barred = _on_megatron_npu(case)
        if barred is not None:
            return barred
        if moe and case.is_moe is not True:
            return unknown("model", "模型结构") if case.is_moe is None else _DENSE
        values = [case.value(setting) for setting in settings]
        known = [value for value in values if not isinstance(value, NotStated)]
        if not known:
            return unknown(name)
        if all(known):
            return is_on(name)
        return advised(f"{name} is not set", f"未设置 {name}")

    return answer


def _batch_rope(case: Case) -> Answer:
    barred = _on_megatron_npu(case)
    if barred is not None:
        return barred
    packed = case.run.value("model.remove_padding")
    if packed is None:
        return unknown("use_remove_padding")
    if not packed:
        return does_not_apply("sequences are not packed", "未使用变长拼接（TND）")
    return unknown(
        "whether this MindSpeed rotates all packed sequences at once",
        "当前 MindSpeed 是否已支持 Batch RoPE",
    )


_NO_NUMBER = Text("no number reported for it alone", "未单独给出收益")
_FUSED_WHEN = Text(
    "Training with MindSpeed on an NPU. The same mathematics with other rounding.",
    "在 NPU 上使用 MindSpeed 训练。数学等价，舍入不同。",
)

ADVICE = (
    Advice(
        "performance.fused_rms_norm",
        Text("use the fused RMSNorm", "使用融合 RMSNorm"),
        Stage.UPDATE,
        _NO_NUMBER,
        (),
        _FUSED_WHEN,
        SEED_235B,
        Rung.FORWARD,
        {
            "verl": f"{_OVERRIDE}.use_fused_rmsnorm=True",
            "mindspeed_rl": "megatron_training.use_fused_rmsnorm: true",
        },
        _fused("use_fused_rmsnorm", _RMS_NORM),
    ),
    Advice(
        "performance.fused_swiglu",
        Text("use the fused SwiGLU", "使用融合 SwiGLU"),
        Stage.UPDATE,
        _NO_NUMBER,
        (),
        _FUSED_WHEN,
        SEED_235B,
        Rung.FORWARD,
        {
            "verl": f"{_OVERRIDE}.use_fused_swiglu=True",
            "mindspeed_rl": "megatron_training.use_fused_swiglu: true",
        },
        _fused("use_fused_swiglu", _SWIGLU),
    ),
    Advice(
        "performance.fused_rope",
        Text("use the fused rotary embedding", "使用融合 RoPE"),
        Stage.UPDATE,
        Text("0.5 % (7 kernels in 1: 86 µs to 24 µs)", "约 0.5%（7 个算子合 1：86 μs → 24 μs）"),
        (0.5,),
        _FUSED_WHEN,
        SEED_235B,
        Rung.FORWARD,
        {
            "verl": f"{_OVERRIDE}.apply_rope_fusion=True {_OVERRIDE}.use_fused_rotary_pos_emb=True",
            "mindspeed_rl": "megatron_training.use_fused_rotary_pos_emb: true",
        },
        _fused("use_fused_rotary_pos_emb", _ROPE, _ROPE_FUSION),
    ),
    Advice(
        "performance.batch_rope",
        Text("rotate all packed sequences at once (TND batch RoPE)", "TND 场景 Batch RoPE 优化"),
        Stage.UPDATE,
        Text("1-2 %; RoPE itself takes half the time", "1%-2%；RoPE 耗时减半"),
        (1.0, 2.0),
        Text(
            "Packed sequences in TND layout; the longer, the more.",
            "变长拼接（TND）格式；序列越长收益越显著。",
        ),
        SEED_235B,
        Rung.FORWARD,
        {"verl": "a MindSpeed that has it; no switch is documented"},
        _batch_rope,
    ),
    Advice(
        "performance.grouped_gemm",
        Text("compute the experts as one grouped matmul", "专家计算使用 grouped GEMM"),
        Stage.UPDATE,
        _NO_NUMBER,
        (),
        Text("MoE models with many small experts.", "专家较多且较小的 MoE 模型。"),
        SEED_235B,
        Rung.FORWARD,
        {
            "verl": f"{_OVERRIDE}.moe_grouped_gemm=True",
            "mindspeed_rl": "megatron_training.moe_grouped_gemm: true",
        },
        _fused("moe_grouped_gemm", _GROUPED, moe=True),
    ),
)
