"""Advice on the generation of responses."""

from __future__ import annotations

from align.core.rung import Rung
from align.core.text import Text
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
from align.doctor.case import Case
from align.doctor.timing import Stage

_LARGE_EXPERT_PARALLEL = 128  # at which the report saw communication eat the gain on A2


_GENERATES_NOTHING = does_not_apply("the run generates nothing", "该运行不生成回复")


def _graph(case: Case) -> Answer:
    if case.on_npu is not True:
        return DEVICE_UNKNOWN if case.on_npu is None else NOT_ON_NPU
    if case.generates is False:
        return _GENERATES_NOTHING
    eager = case.run.value("rollout.enforce_eager")
    if eager is None:
        return unknown("enforce_eager")
    return advised("enforce_eager is True", "enforce_eager 为 True") if eager else is_on("ACLGraph")


def _max_num_seqs(case: Case) -> Answer:
    if case.generates is False:
        return _GENERATES_NOTHING
    if case.capacity is None:
        return unknown(
            "batch size, n, devices or rollout parallel sizes", "batch、n、卡数或推理并行度"
        )
    limit, wanted = case.run.number("rollout.max_num_seqs"), case.capacity.sequences
    if limit is None:
        return unknown("max_num_seqs")
    if limit >= wanted:
        return is_on(f"max_num_seqs = {limit:g} ≥ {wanted:g}")
    return advised(
        f"max_num_seqs is {limit:g}; each of {case.capacity.replicas:g} replicas gets {wanted:g} "
        "sequences a step",
        f"max_num_seqs 为 {limit:g}；"
        f"{case.capacity.replicas:g} 个推理副本每步各有 {wanted:g} 条序列",
    )


def _tensor_parallel(case: Case) -> Answer:
    if case.generates is False:
        return _GENERATES_NOTHING
    size, devices = case.run.number("rollout.tensor_parallel_size"), case.shape.devices
    if size is None or devices is None:
        return unknown("rollout tensor parallel size or number of devices", "推理 TP 或卡数")
    if size != 2 or devices < 4:
        return does_not_apply("rollout TP is not 2", "rollout TP 不为 2")
    if case.capacity is None:
        return unknown("batch size or n", "batch 或 n")
    now = case.capacity.sequences
    return advised(
        f"rollout TP is 2: {now:g} sequences a replica, {2 * now:g} with TP 4",
        f"rollout TP 为 2：每个副本 {now:g} 条序列，TP 为 4 时为 {2 * now:g} 条",
    )


def _expert_parallel(case: Case) -> Answer:
    if case.on_npu is not True:
        return DEVICE_UNKNOWN if case.on_npu is None else NOT_ON_NPU
    if case.is_moe is not True:
        return unknown("model", "模型结构") if case.is_moe is None else _DENSE
    if case.generates is False:
        return _GENERATES_NOTHING
    size = case.run.number("rollout.expert_parallel_size") or 1
    if size >= _LARGE_EXPERT_PARALLEL and case.machine != "a3":
        return advised(
            f"rollout expert parallel size is {size:g}: too large for the bandwidth of an A2",
            f"rollout 专家并行度为 {size:g}：对 A2 的通信带宽而言过大",
        )
    enabled = case.run.value("rollout.engine_options.enable_expert_parallel")
    if enabled is True or size > 1:
        return is_on("expert parallelism in the rollout")
    return advised("experts are not distributed in the rollout", "rollout 未开启专家并行")


_DENSE = does_not_apply("the model has no experts", "模型没有专家层")

ADVICE = (
    Advice(
        "performance.acl_graph",
        Text("run the rollout engine with captured graphs", "推理开启 ACLGraph 图模式"),
        Stage.GENERATE,
        Text("15-20 % of the whole step", "端到端 15%-20%"),
        (15.0, 20.0),
        Text(
            "Host-bound decoding with device memory to spare; MindSpeed's patch must be undone "
            "during rollout (versions after the fix do). Graphs and TASK_QUEUE_ENABLE=2 exclude "
            "each other: set it to 1.",
            "Host 下发受限且显存有余量；rollout 期间须撤销 MindSpeed 的 patch"
            "（修复后的版本已处理）。"
            "图模式与 TASK_QUEUE_ENABLE=2 互斥，需设为 1。",
        ),
        SEED_235B,
        Rung.ROLLOUT,
        {
            "verl": "actor_rollout_ref.rollout.enforce_eager=False",
            "mindspeed_rl": "generate_config.enforce_eager: false",
        },
        _graph,
    ),
    Advice(
        "performance.max_num_seqs",
        Text(
            "let the engine take all sequences of a replica at once",
            "max_num_seqs 与推理 micro_batch_size 拉满",
        ),
        Stage.GENERATE,
        Text("no number reported for it alone", "未单独给出收益"),
        (),
        Text(
            "As long as the KV cache holds them; else vLLM preempts and it gets slower.",
            "前提是 KV cache 放得下；否则 vLLM 会抢占，反而变慢。",
        ),
        SEED_7B_32B,
        Rung.ROLLOUT,
        {
            "verl": "actor_rollout_ref.rollout.max_num_seqs=<prompts·n/replicas>",
            "mindspeed_rl": "generate_config.max_num_seqs and micro_batch_size: "
            "<prompts·n/replicas>",
        },
        _max_num_seqs,
    ),
    Advice(
        "performance.rollout_tensor_parallel",
        Text(
            "try a larger rollout tensor parallel size for a larger micro-batch",
            "尝试增大推理 TP 以换取更大的推理 micro-batch",
        ),
        Stage.GENERATE,
        Text(
            "12 % (TP 2 to 4, micro-batch 256 to 512, Qwen2.5-32B)",
            "12%（Qwen2.5-32B，TP 2→4，推理 mbs 256→512）",
        ),
        (12.0,),
        Text(
            "A model whose weights leave little memory for sequences, as 32B on 64 GB; a small "
            "model loses more to communication than it gains.",
            "权重占用较多显存的模型（如 64 GB 上的 32B）；小模型的通信损失会超过收益。",
        ),
        SEED_7B_32B,
        Rung.ROLLOUT,
        {
            "verl": "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
            "mindspeed_rl": "generate_config.infer_tensor_parallel_size: 4",
        },
        _tensor_parallel,
    ),
    Advice(
        "performance.expert_parallel",
        Text("distribute experts in the rollout, within limits", "推理开启专家并行，规模适中"),
        Stage.GENERATE,
        Text("no number reported", "未给出收益数值"),
        (),
        Text(
            "MoE models; needs CANN 8.3.RC1 or later. On A2 not as large as 128: communication "
            "then costs more than it saves.",
            "MoE 模型；需要 CANN 8.3.RC1 及以上。A2 上 EP 不宜大到 128：通信开销会激增。",
        ),
        SEED_235B,
        Rung.ROLLOUT,
        {
            "verl": "+actor_rollout_ref.rollout.engine_kwargs.vllm.enable_expert_parallel=True",
            "mindspeed_rl": "generate_config.enable_expert_parallel: true",
        },
        _expert_parallel,
    ),
)
