"""Error messages whose cause and way out are known on Ascend.

Source: the table of key problems in the Qwen3-235B long-sequence guide (verl
docs/ascend_tutorial, 2025-12-05).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from align.core.finding import Evidence, Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


@dataclass(frozen=True, slots=True)
class KnownError:
    """A message, what causes it and what to do."""

    name: str
    pattern: re.Pattern[str]
    rung: Rung
    why: Text
    fix: Text


def _says(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


KNOWN = (
    KnownError(
        "hccl_timeout",
        _says(r"hccl.*time ?out|E[IJ]\d{4}.*time ?out|\bEI0006\b|notify wait time ?out"),
        Rung.ENVIRONMENT,
        Text(
            "A rank waited longer for the others than HCCL allows. With long responses the rank "
            "whose prompts run longest keeps the others waiting.",
            "某个 rank 等待其他 rank 的时间超过了 HCCL 的限制。长序列场景下，"
            "回复最长的 rank 会让其他 rank 一直等待。",
        ),
        Text(
            "Set interleave to False for the input and for the output batch alike (only one of "
            "them breaks the rewards), or raise HCCL_EXEC_TIMEOUT and HCCL_CONNECT_TIMEOUT.",
            "将输入与输出 batch 的 interleave 同时设为 False（只改一处会使 reward 异常），"
            "或提高 HCCL_EXEC_TIMEOUT 与 HCCL_CONNECT_TIMEOUT。",
        ),
    ),
    KnownError(
        "context_parallel_override",
        _says(r"context_parallel_size"),
        Rung.CONFIG,
        Text(
            "MindSpeed reads the context parallel size from override_transformer_config too.",
            "MindSpeed 还会从 override_transformer_config 读取上下文并行度。",
        ),
        Text(
            "Set +actor_rollout_ref.actor.megatron.override_transformer_config."
            "context_parallel_size to the same size.",
            "将 +actor_rollout_ref.actor.megatron.override_transformer_config."
            "context_parallel_size 设为相同的值。",
        ),
    ),
    KnownError(
        "group_type",
        _says(r"\bgroup_type\b"),
        Rung.ENVIRONMENT,
        Text(
            "torch_npu and MindSpeed are of versions that do not fit each other.",
            "torch_npu 与 MindSpeed 版本不匹配。",
        ),
        Text(
            "Install a pair that was tried together; `align doctor --only environment` lists them.",
            "安装经过验证的版本组合；`align doctor --only environment` 会列出这些组合。",
        ),
    ),
    KnownError(
        "index_first_axis",
        _says(r"\bindex_first_axis\b"),
        Rung.ENVIRONMENT,
        Text(
            "The rl-plugin did not patch verl: flash_attn's helpers are not there on an NPU.",
            "rl-plugin 未正确 patch verl：NPU 上没有 flash_attn 的这些函数。",
        ),
        Text(
            "Install the plugin again, or import it first in verl/__init__.py.",
            "重新安装该插件，或手动修改 verl/__init__.py 使其最先导入。",
        ),
    ),
    KnownError(
        "not_divisible",
        _says(r"only support equal chunk|DataProto.*(?:chunk|divi)|not divisible by"),
        Rung.CONFIG,
        Text(
            "train_batch_size × n is no multiple of the number of ranks it is shared out to.",
            "train_batch_size × n 不能被所分配的卡数整除。",
        ),
        Text(
            "Choose sizes whose product is a multiple of the ranks, as 384 × 16.",
            "调整为可整除的组合，如 384 × 16。",
        ),
    ),
    KnownError(
        "megatron_training_missing",
        _says(r"No module named '?megatron\.training"),
        Rung.ENVIRONMENT,
        Text(
            "With pipeline parallelism MindSpeed before September 2025 imports megatron.training, "
            "which verl does not need otherwise.",
            "开启 PP 时，2025 年 9 月 5 日之前的 MindSpeed 会导入 megatron.training 模块。",
        ),
        Text(
            "Upgrade MindSpeed to a version after 2025-09-05, or repair optimize_p2p_comm.py.",
            "升级 MindSpeed 至 9.5 之后的版本，或修复 optimize_p2p_comm.py。",
        ),
    ),
    KnownError(
        "out_of_memory",
        _says(r"out of memory|\bOOM\b|OutOfMemoryError"),
        Rung.ENVIRONMENT,
        Text(
            "The device memory ran out. With sequences of 30k tokens the log_prob pass is the "
            "usual place.",
            "设备内存不足。30k 长序列下最常发生在 log_prob 阶段。",
        ),
        Text(
            "Lower log_prob_max_token_len_per_gpu (16k served at 30k tokens); not further than "
            "needed, or the shapes become too small to be fast.",
            "降低 log_prob_max_token_len_per_gpu（30k 序列下 16k 可用）；不要过小，"
            "否则输入形状过细、计算效率下降。",
        ),
    ),
)


def error_findings(errors: Iterable[Evidence]) -> Iterator[Finding]:
    """Yield a finding for the last error of each log, with its cause where that is known."""
    for error in errors:
        text = error.text or ""
        known = next((each for each in KNOWN if each.pattern.search(text)), None)
        yield _finding(error, known)


def _finding(error: Evidence, known: KnownError | None) -> Finding:
    return Finding(
        id=f"doctor.error.{known.name if known else 'last'}",
        rung=known.rung if known else Rung.ENVIRONMENT,
        severity=Severity.WARNING,
        title=Text(f"the log's last error: {error.text}", f"日志中的最后一个错误：{error.text}"),
        reference=None,
        candidate=error.text,
        evidence=(error,),
        why=known.why if known else _UNKNOWN,
        fix=known.fix if known else _LOOK,
    )


_UNKNOWN = Text("Its cause is not in the table of known errors.", "其原因不在已知错误表中。")
_LOOK = Text(
    "Read the lines before it in the log: the first error, not the last, names the cause.",
    "请查看日志中在它之前的内容：说明原因的通常是第一个错误。",
)
