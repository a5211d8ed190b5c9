"""Advice on the forward and backward passes of training."""

from __future__ import annotations

import numpy as np

from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.doctor.advice.advice import (
    SEED_7B_32B,
    SEED_235B,
    Advice,
    Answer,
    advised,
    does_not_apply,
    is_on,
    unknown,
)
from align.doctor.case import Case, NotStated, Setting
from align.doctor.timing import Stage

UNEVEN = Threshold(
    1.5, source="longest over mean response; the report saw 15 % with 10 to 4096 tokens"
)
LOG_PROB_BUDGET = Threshold(16384, source=SEED_235B + ": 16k tokens served sequences of 30k")

_COC = Setting(
    ("actor.parallel_options.ascend_coc",), {"mindspeed_rl": "megatron_training.use_ascend_coc"}
)


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
