"""Advice on environment variables."""

from __future__ import annotations

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
from align.doctor.case import Case, host_of


def _task_queue(case: Case) -> Answer:
    if case.on_npu is not True:
        return DEVICE_UNKNOWN if case.on_npu is None else NOT_ON_NPU
    if case.run.fact("env.ASCEND_LAUNCH_BLOCKING") == "1":
        return does_not_apply(
            "ASCEND_LAUNCH_BLOCKING=1 closes the queue", "ASCEND_LAUNCH_BLOCKING=1 已关闭队列"
        )
    level, eager = case.run.fact("env.TASK_QUEUE_ENABLE"), case.run.value("rollout.enforce_eager")
    if eager is False:
        return does_not_apply(
            "the rollout runs captured graphs, which exclude level 2",
            "推理使用图模式，与 Level 2 互斥",
        )
    if level == "2":
        return is_on("TASK_QUEUE_ENABLE=2")
    if level is None:
        return unknown("TASK_QUEUE_ENABLE")
    return advised(f"TASK_QUEUE_ENABLE is {level}", f"TASK_QUEUE_ENABLE 为 {level}")


def _jemalloc(case: Case) -> Answer:
    if case.on_npu is not True:
        return DEVICE_UNKNOWN if case.on_npu is None else NOT_ON_NPU
    machine = host_of(case.run)
    if machine is not None and machine != "aarch64":
        return does_not_apply(f"the host is {machine}", f"主机架构为 {machine}")
    preload = case.run.fact("env.LD_PRELOAD")
    if preload is not None and "jemalloc" in preload:
        return is_on("jemalloc")
    if machine is None:
        return unknown("the host's architecture", "主机架构")
    if preload is None:
        return unknown("LD_PRELOAD")
    return advised("jemalloc is not preloaded", "未预加载 jemalloc")


ADVICE = (
    Advice(
        "performance.task_queue",
        Text("dispatch operators on two stages, level 2", "开启二级流水（Level 2）"),
        None,
        Text("no number reported", "未给出收益数值"),
        (),
        Text(
            "Binary operators, and no captured graphs in the rollout. The peak of device memory "
            "can rise.",
            "仅在二进制场景生效，且推理未使用图模式。NPU 内存峰值可能上升。",
        ),
        f"{SEED_7B_32B}; {SEED_235B}",
        None,
        {
            "verl": "export TASK_QUEUE_ENABLE=2",
            "mindspeed_rl": "configs/envs/runtime_env.yaml: TASK_QUEUE_ENABLE: '2'",
        },
        _task_queue,
    ),
    Advice(
        "performance.jemalloc",
        Text("allocate host memory with jemalloc", "使用 jemalloc 管理主机内存"),
        None,
        Text("no number reported", "未给出收益数值"),
        (),
        Text("On Arm hosts; none was seen on x86.", "仅 Arm 主机；x86 无明显收益。"),
        SEED_235B,
        None,
        dict.fromkeys(
            ("verl", "mindspeed_rl"),
            'export LD_PRELOAD="$LD_PRELOAD:/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"',
        ),
        _jemalloc,
    ),
)
