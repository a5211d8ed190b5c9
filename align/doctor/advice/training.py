"""Advice on the forward and backward passes of training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.doctor.advice.advice import (
    DEVICE_UNKNOWN,
    NOT_ON_NPU,
    SEED_7B_32B,
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
UNEVEN = Threshold(
    1.5, source="longest over mean response; the report saw 15 % with 10 to 4096 tokens"
)
LOG_PROB_BUDGET = Threshold(16384, source=SEED_235B + ": 16k tokens served sequences of 30k")

_RMS_NORM = megatron_override("use_fused_rmsnorm", "model.fused_rms_norm")
_SWIGLU = megatron_override("use_fused_swiglu", "model.fused_swiglu")
_ROPE = megatron_override("use_fused_rotary_pos_emb", "model.fused_rope")
_ROPE_FUSION = megatron_override("apply_rope_fusion")
_GROUPED = megatron_override("moe_grouped_gemm", "model.grouped_gemm")
_COC = Setting(
    ("actor.parallel_options.ascend_coc",), {"mindspeed_rl": "megatron_training.use_ascend_coc"}
)

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


def _remove_padding(case: Case) -> Answer:
    on = case.run.value("model.remove_padding")
    if on is None:
        return unknown("use_remove_padding")
    if on:
        return is_on("use_remove_padding")
    spread = _spread(case)
    if spread is None:
        return advised(
            "use_remove_padding is off; whether lengths are uneven is unknown",
            "use_remove_padding 未开启；长度是否不均衡未知",
        )
    if spread < UNEVEN.value:
        return does_not_apply("responses are of even length", "回复长度均衡")
    return advised(
        f"use_remove_padding is off, and the longest response of a step is {spread:.1f} × the mean",
        f"use_remove_padding 未开启，且每步最长回复是平均值的 {spread:.1f} 倍",
    )


def _spread(case: Case) -> float | None:
    """Return the median of longest over mean response."""
    longest = case.metrics.get("response_length/max")
    mean = case.metrics.get("response_length/mean")
    if longest is None or mean is None:
        return None
    _, ours, theirs = np.intersect1d(longest.steps, mean.steps, return_indices=True)
    values = mean.values[theirs]
    if not len(values) or not (values > 0).all():
        return None
    return float(np.median(longest.values[ours] / values))


def _coc(case: Case) -> Answer:
    if case.framework != "mindspeed_rl":
        return does_not_apply("a switch of MindSpeed-RL", "MindSpeed-RL 的特性")
    size = case.run.number("actor.tensor_parallel_size")
    if size is None:
        return unknown("tensor parallel size", "张量并行度")
    if size < 2:
        return does_not_apply("no tensor parallelism", "未使用张量并行")
    on = case.value(_COC)
    if isinstance(on, NotStated):
        return unknown("use_ascend_coc")
    return is_on("use_ascend_coc") if on else advised("CoC is off", "未开启 CoC")


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


def _log_prob_budget(case: Case) -> Answer:
    budget, longest = case.run.number("old_log_prob.max_tokens"), case.run.longest_sequence
    grouped = ("old_log_prob.dynamic_batch", "actor.dynamic_batch")
    known = next((name for name in grouped if name in case.run.config.values), None)
    if known is not None and case.run.is_off(known):
        return does_not_apply("log_prob batches are of fixed size", "log_prob 未按 token 数分批")
    if budget is None or longest is None:
        return unknown(
            "log_prob token budget or sequence length", "log_prob 的 token 上限或序列长度"
        )
    if budget < longest and longest <= LOG_PROB_BUDGET.value:
        return advised(
            f"the budget of {budget:g} tokens is under one sequence of {longest:g}",
            f"token 上限 {budget:g} 小于单条序列的 {longest:g}",
        )
    if budget > LOG_PROB_BUDGET.value and longest > LOG_PROB_BUDGET.value:
        return advised(
            f"the budget is {budget:g} tokens with sequences of {longest:g}: if log_prob runs out "
            "of memory, 16384",
            f"序列长 {longest:g} 时 token 上限为 {budget:g}：若 log_prob 阶段 OOM，可降至 16384",
        )
    return does_not_apply("the budget fits the sequences", "token 上限与序列长度相称")


_NO_NUMBER = Text("no number reported for it alone", "未单独给出收益")
_FUSED_WHEN = Text(
    "Training with MindSpeed on an NPU. The same mathematics with other rounding.",
    "在 NPU 上使用 MindSpeed 训练。数学等价，舍入不同。",
)

ADVICE = (
    Advice(
        "performance.remove_padding",
        Text("compute without padding", "开启 remove padding"),
        Stage.UPDATE,
        Text("15 % of the whole step", "性能提升 15%"),
        (15.0,),
        Text(
            "Long responses of very uneven length; nothing where lengths are alike. MindSpeed-RL "
            "also needs variable_seq_lengths.",
            "序列较长且长度很不均衡时；长度接近时没有收益。"
            "MindSpeed-RL 还需 variable_seq_lengths。",
        ),
        SEED_7B_32B,
        Rung.FORWARD,
        {
            "verl": "actor_rollout_ref.model.use_remove_padding=True",
            "mindspeed_rl": "rl_config.use_remove_padding: true, "
            "megatron_training.variable_seq_lengths: true",
        },
        _remove_padding,
    ),
    Advice(
        "performance.coc",
        Text("overlap computing and communication (CoC)", "开启计算通信并行 CoC"),
        Stage.UPDATE,
        Text("6-8 % of training", "训练部分 6%-8%"),
        (6.0, 8.0),
        Text(
            "Tensor parallelism in training; LCAL_COMM_ID must be set. Matmuls are split, so sums "
            "are rounded otherwise, and determinism wants it off.",
            "训练使用张量并行，并设置 LCAL_COMM_ID。Matmul 被拆分，舍入不同；确定性计算要求关闭。",
        ),
        SEED_7B_32B,
        Rung.FORWARD,
        {"mindspeed_rl": "megatron_training.use_ascend_coc: true"},
        _coc,
    ),
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
    Advice(
        "performance.log_prob_token_budget",
        Text("choose the log_prob token budget", "调整 log_prob 的 token 上限"),
        Stage.OLD_LOG_PROB,
        Text("avoids running out of memory at 30k tokens", "避免 30k 序列下 OOM"),
        (),
        Text(
            "Not smaller than memory asks for: many small shapes compute slowly.",
            "不宜过小：输入形状过细会降低计算效率。",
        ),
        SEED_235B,
        Rung.FORWARD,
        {
            "verl": "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384",
            "mindspeed_rl": "rl_config.actor_max_packing_token_size: 16384",
        },
        _log_prob_budget,
    ),
)
