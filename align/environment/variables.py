"""Environment variables that matter on an NPU: what each does, and what a run's own times say.

What contradicts the configuration is checked with it, in `align.config.lint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from align.core.environment import EnvironmentFact
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold

PREFIX = "env."

MEANINGS: Mapping[str, Text] = {
    "TASK_QUEUE_ENABLE": Text(
        "operator dispatch queue: 0 off, 1 two stages, 2 more work on the second stage",
        "算子下发队列：0 关闭，1 二级流水，2 将更多任务迁移至二级流水",
    ),
    "ASCEND_LAUNCH_BLOCKING": Text(
        "1 runs every operator synchronously, for finding errors", "1 为同步执行算子，用于定位报错"
    ),
    "HCCL_CONNECT_TIMEOUT": Text("seconds ranks wait to connect", "建链等待时间（秒）"),
    "HCCL_EXEC_TIMEOUT": Text(
        "seconds ranks wait for each other in a collective", "集合通信的等待时间（秒）"
    ),
    "HCCL_BUFFSIZE": Text("MB of buffer for each communicator", "每个通信域的缓冲区大小（MB）"),
    "HCCL_OP_EXPANSION_MODE": Text(
        "where collectives are scheduled: AI_CPU, AIV, HOST", "通信算法的编排展开位置"
    ),
    "HCCL_DETERMINISTIC": Text("reductions in a fixed order", "归约类通信的确定性计算"),
    "LCCL_DETERMINISTIC": Text("the same for LCCL", "LCCL 通信的确定性计算"),
    "CLOSE_MATMUL_K_SHIFT": Text(
        "1 keeps the order of matmul's inner sum", "1 为固定 matmul 内轴求和顺序"
    ),
    "ATB_MATMUL_SHUFFLE_K_ENABLE": Text(
        "0 keeps the order of ATB matmul's inner sum", "0 为固定 ATB matmul 内轴求和顺序"
    ),
    "ATB_LLM_LCOC_ENABLE": Text(
        "0 switches ATB's overlap of computing and communication off", "0 为关闭 ATB 计算通信掩盖"
    ),
    "CUBLAS_WORKSPACE_CONFIG": Text(
        "fixed workspaces make cuBLAS repeatable", "固定 cuBLAS 工作区以保证可复现"
    ),
    "PYTHONHASHSEED": Text("order of Python's sets", "Python 集合的遍历顺序"),
    "PYTORCH_NPU_ALLOC_CONF": Text(
        "NPU memory allocator, such as expandable_segments:True", "NPU 内存分配器设置"
    ),
    "LD_PRELOAD": Text("libraries loaded first, such as jemalloc", "预加载库，如 jemalloc"),
    "CPU_AFFINITY_CONF": Text("binding of processes to cores", "绑核设置"),
    "CUDA_DEVICE_MAX_CONNECTIONS": Text(
        "order of computing and communication in Megatron", "Megatron 中计算与通信的下发顺序"
    ),
}
"""What is shown of each variable that a run sets."""

EXEC_TIMEOUT_SHARE = Threshold(
    1.0, source="a rank that is done waits in the next collective for the slowest one"
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else is known of the run; None where it is not.

    Args:
        machine: architecture of the host: "aarch64" or "x86_64".
        longest_generation_s: longest time one step spent generating, in seconds.
    """

    machine: str | None = None
    longest_generation_s: float | None = None


Variables = Mapping[str, EnvironmentFact]
"""Environment variables by name, without prefix."""

Check = Callable[[Variables, Surroundings], Iterator[Finding]]


def variables_of(facts: Mapping[str, EnvironmentFact]) -> dict[str, EnvironmentFact]:
    """Return the environment variables among a run's facts."""
    return {
        name.removeprefix(PREFIX): fact for name, fact in facts.items() if name.startswith(PREFIX)
    }


def findings(variables: Variables, around: Surroundings) -> tuple[Finding, ...]:
    """Return what is wrong with one run's variables."""
    return tuple(finding for check in _CHECKS for finding in check(variables, around))


def _blocking(variables: Variables, around: Surroundings) -> Iterator[Finding]:
    blocking, queue = variables.get("ASCEND_LAUNCH_BLOCKING"), variables.get("TASK_QUEUE_ENABLE")
    if blocking is None or blocking.value != "1":
        return
    if queue is not None and queue.value != "0":
        return  # the configuration checks say that the queue's level has no effect
    yield _finding(
        "launch_blocking",
        Text(
            "ASCEND_LAUNCH_BLOCKING=1 runs every operator synchronously",
            "ASCEND_LAUNCH_BLOCKING=1 使每个算子同步执行",
        ),
        [blocking],
        Text(
            "It closes the dispatch queue. It is meant for finding which operator fails.",
            "它会关闭算子下发队列，仅用于定位报错的算子。",
        ),
        Text("Unset ASCEND_LAUNCH_BLOCKING for training.", "训练时请取消 ASCEND_LAUNCH_BLOCKING。"),
    )


def _short_timeout(variables: Variables, around: Surroundings) -> Iterator[Finding]:
    timeout = variables.get("HCCL_EXEC_TIMEOUT")
    longest = around.longest_generation_s
    if timeout is None or not timeout.value.isdigit() or longest is None:
        return
    limit = int(timeout.value)
    if limit == 0 or longest < EXEC_TIMEOUT_SHARE.value * limit:  # 0 waits for ever
        return
    yield _finding(
        "hccl_exec_timeout",
        Text(
            f"HCCL_EXEC_TIMEOUT={limit} s is shorter than the longest generation, {longest:.0f} s",
            f"HCCL_EXEC_TIMEOUT={limit} 秒短于最长的生成阶段 {longest:.0f} 秒",
        ),
        [timeout],
        Text(
            "A rank that is done with its prompts waits for the slowest in the next collective; "
            "one long response then ends the run with a timeout.",
            "先完成的 rank 会在下一次集合通信中等待最慢的 rank；一条长回复即可导致超时退出。",
        ),
        Text(
            "Raise HCCL_EXEC_TIMEOUT above the longest generation; balance the prompts over the "
            "ranks (interleave off for input and output batch alike).",
            "将 HCCL_EXEC_TIMEOUT 提高到最长生成时间以上；并均衡各 rank 的 prompt"
            "（输入与输出 batch 的 interleave 同时设为 False）。",
        ),
    )


def _jemalloc_on_x86(variables: Variables, around: Surroundings) -> Iterator[Finding]:
    preload = variables.get("LD_PRELOAD")
    if preload is None or "jemalloc" not in preload.value or around.machine != "x86_64":
        return
    if "aarch64" in preload.value:
        return  # the configuration checks say that it cannot be loaded
    yield _finding(
        "jemalloc_on_x86",
        Text("jemalloc is preloaded on x86", "在 x86 上预加载了 jemalloc"),
        [preload],
        Text("The Ascend guide saw a gain on Arm only.", "昇腾指南仅在 Arm 上观察到收益。"),
        Text("It does no harm; leave it or unset it.", "没有坏处，可保留也可取消。"),
        Severity.INFO,
    )


_CHECKS: Sequence[Check] = (_blocking, _short_timeout, _jemalloc_on_x86)


def _finding(
    name: str,
    title: Text,
    facts: Sequence[EnvironmentFact],
    why: Text,
    fix: Text,
    severity: Severity = Severity.WARNING,
) -> Finding:
    return Finding(
        id=f"environment.{name}",
        rung=Rung.ENVIRONMENT,
        severity=severity,
        title=title,
        reference=None,
        candidate=", ".join(f"{f.name.removeprefix(PREFIX)}={f.value}" for f in facts),
        evidence=tuple(fact.evidence for fact in facts),
        why=why,
        fix=fix,
    )
