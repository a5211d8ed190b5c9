"""Advice on how training is split over devices."""

from __future__ import annotations

from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.doctor.advice.advice import (
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

_ACTOR = "actor_rollout_ref.actor.megatron"
_REF = "actor_rollout_ref.ref.megatron"
_DISTRIBUTED = "use_distributed_optimizer"

LARGE_CP = Threshold(8, source=SEED_235B + ": CP 8 to 4")
LARGE_PP = Threshold(12, source=SEED_235B + ": PP 12 to 8")

_SWITCHES = {
    f"{_ACTOR}.{_DISTRIBUTED}": Setting(keys={"verl": f"{_ACTOR}.{_DISTRIBUTED}"}),
    f"{_REF}.{_DISTRIBUTED}": Setting(keys={"verl": f"{_REF}.{_DISTRIBUTED}"}),
    f"{_ACTOR}.override_transformer_config.{_DISTRIBUTED}": megatron_override(_DISTRIBUTED),
}
# verl's own yaml sets the first to True and the second by interpolation; the third is MindSpeed's.
_ON_BY_DEFAULT = (f"{_ACTOR}.{_DISTRIBUTED}", f"{_REF}.{_DISTRIBUTED}")
_MINDSPEED_RL = Setting(
    ("actor.parallel_options.distributed_optimizer",),
    {"mindspeed_rl": f"megatron_training.{_DISTRIBUTED}"},
)
_ETP = Setting(
    ("actor.expert_tensor_parallel_size", "actor.parallel_options.expert_tensor_parallel_size"),
    {"verl": f"{_ACTOR}.expert_tensor_parallel_size"},
)

_NO_MEGATRON = does_not_apply("only with Megatron", "仅适用于 Megatron")


def _not_megatron(case: Case) -> Answer | None:
    if case.on_megatron is True:
        return None
    return unknown("actor.strategy") if case.on_megatron is None else _NO_MEGATRON


def _distributed_optimizer(case: Case) -> Answer:
    barred = _not_megatron(case)
    if barred is not None:
        return barred
    if case.framework == "mindspeed_rl":
        value = case.value(_MINDSPEED_RL)
        if isinstance(value, NotStated):
            return unknown(_DISTRIBUTED)
        return is_on(_DISTRIBUTED) if value else advised(*_off(_DISTRIBUTED))
    if case.on_npu is not True:
        return unknown("device", "设备") if case.on_npu is None else _NOT_MINDSPEED
    off, open_ = [], []
    for key, setting in _SWITCHES.items():
        value = case.value(setting)
        if isinstance(value, NotStated):
            open_.append(key)
        elif value is None and key in _ON_BY_DEFAULT:
            continue
        elif not value:
            off.append(key)
    if off:
        return advised(*_off(", ".join(off)))
    return unknown(", ".join(open_)) if open_ else is_on("the distributed optimizer, all three")


def _off(what: str) -> tuple[str, str]:
    return f"not on: {what}", f"未开启：{what}"


_NOT_MINDSPEED = does_not_apply(
    "the third switch is MindSpeed's; verl sets the others by itself",
    "第三个开关属于 MindSpeed；其余由 verl 默认开启",
)


def _expert_tensor_parallel(case: Case) -> Answer:
    barred = _not_megatron(case)
    if barred is not None:
        return barred
    if case.is_moe is not True:
        return unknown("model", "模型结构") if case.is_moe is None else _DENSE
    tensor = case.run.number("actor.tensor_parallel_size")
    if tensor is not None and tensor <= 1:
        return does_not_apply("no tensor parallelism", "未使用张量并行")
    if case.framework == "mindspeed_rl":
        if case.run.is_on("actor.parallel_options.moe_tp_extend_ep"):
            return is_on("moe_tp_extend_ep keeps experts whole")
        return advised("moe_tp_extend_ep is off: TP cuts the experts", "未开启 moe_tp_extend_ep")
    size = case.value(_ETP)
    if isinstance(size, NotStated):
        return unknown("expert_tensor_parallel_size")
    if size == 1:
        return is_on("expert_tensor_parallel_size = 1")
    shown = "not set (follows TP)" if size is None else str(size)
    return advised(
        f"expert_tensor_parallel_size is {shown}", f"expert_tensor_parallel_size: {size}"
    )


_DENSE = does_not_apply("the model has no experts", "模型没有专家层")


def _sizes(case: Case) -> Answer:
    barred = _not_megatron(case)
    if barred is not None:
        return barred
    context = case.run.number("actor.context_parallel_size")
    pipeline = case.run.number("actor.pipeline_parallel_size")
    if context is None or pipeline is None:
        return unknown("context or pipeline parallel size", "CP 或 PP 大小")
    if context < LARGE_CP.value and pipeline < LARGE_PP.value:
        return does_not_apply("CP and PP are moderate", "CP 与 PP 不大")
    return advised(
        f"CP is {context:g}, PP is {pipeline:g}", f"CP 为 {context:g}，PP 为 {pipeline:g}"
    )


ADVICE = (
    Advice(
        "performance.parallel_sizes",
        Text(
            "try smaller context and pipeline parallel sizes, and larger EP",
            "尝试减小 CP 与 PP，并增大 EP",
        ),
        Stage.UPDATE,
        Text(
            "pipeline communication fell from 56.6 % to 29.55 % of the time (CP 8 to 4, PP 12 to "
            "8, EP 8 to 16, ETP 1)",
            "PP 通信占比从 56.6% 降至 29.55%（CP 8→4，PP 12→8，EP 8→16，ETP 1）",
        ),
        (),
        Text(
            "Where a profile shows communication as the larger part, and memory allows it: "
            "smaller CP and PP hold more on each device, which larger EP makes up for.",
            "profiling 显示通信占主要部分且显存允许："
            "CP、PP 减小会增加单卡显存，可用更大的 EP 缓解。",
        ),
        SEED_235B,
        Rung.FORWARD,
        {
            "verl": f"{_ACTOR}.context_parallel_size=4 {_ACTOR}.pipeline_model_parallel_size=8 "
            f"(and +{_ACTOR}.override_transformer_config.context_parallel_size=4)",
            "mindspeed_rl": "actor_config.context_parallel_size: 4, "
            "actor_config.pipeline_model_parallel_size: 8",
        },
        _sizes,
    ),
    Advice(
        "performance.distributed_optimizer",
        Text("switch the distributed optimizer on everywhere", "开启分布式优化器（三个开关）"),
        Stage.UPDATE,
        Text("memory and communication; no number reported", "降低显存与通信；未给出收益数值"),
        (),
        Text(
            "Data parallel size above 1. All three switches: verl's actor and ref, and the one "
            "MindSpeed reads.",
            "数据并行度大于 1。三个开关都要开启：verl 的 actor 与 ref，以及 MindSpeed 读取的那个。",
        ),
        SEED_235B,
        Rung.OPTIMIZER,
        {
            "verl": " ".join(f"{'+' if 'override' in key else ''}{key}=True" for key in _SWITCHES),
            "mindspeed_rl": f"megatron_training.{_DISTRIBUTED}: true",
        },
        _distributed_optimizer,
    ),
    Advice(
        "performance.expert_tensor_parallel",
        Text("keep each expert whole (ETP = 1)", "专家不做张量切分（ETP = 1）"),
        Stage.UPDATE,
        Text("no number reported for it alone", "未单独给出收益"),
        (),
        Text("MoE models with small experts.", "专家较小的 MoE 模型。"),
        SEED_235B,
        Rung.FORWARD,
        {
            "verl": f"{_ACTOR}.expert_tensor_parallel_size=1",
            "mindspeed_rl": "actor_config.moe_tp_extend_ep: true",
        },
        _expert_tensor_parallel,
    ),
)
