"""Devices, sharding and memory: the same mathematics, distributed."""

from __future__ import annotations

from align.config.schema.field import Field, ValueKind
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_SPLIT = Text(
    "The same sums are computed in another order: rounding differs, no more.",
    "同样的求和以不同顺序计算：只有舍入不同。",
)
_MEMORY = Text("It moves data, not numbers.", "它只搬移数据，不改变数值。")


def _split(name: str, en: str, zh: str, kind: ValueKind = ValueKind.NUMBER) -> Field:
    return Field(
        name,
        Rung.FORWARD,
        Text(en, zh),
        kind,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_SPLIT,
    )


def _harmless(name: str, rung: Rung, en: str, zh: str, kind: ValueKind = ValueKind.FLAG) -> Field:
    return Field(
        name, rung, Text(en, zh), kind, severity=Severity.INFO, strength=Strength.NONE, why=_MEMORY
    )


FIELDS: tuple[Field, ...] = (
    Field(
        "actor.strategy",
        Rung.FORWARD,
        Text("training engine", "训练引擎"),
        ValueKind.NAME,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=Text(
            "Another engine computes the same update with other kernels and sharding. A gradient "
            "norm that is a constant multiple (3 in verl#4710) is no rounding but another "
            "normalisation of the loss.",
            "另一种训练引擎以不同的算子与切分计算同样的更新。若梯度范数相差固定倍数"
            "（verl#4710 为 3 倍），则不是舍入，而是损失归一化不同。",
        ),
    ),
    Field(
        "trainer.implementation",
        Rung.FORWARD,
        Text("trainer implementation", "训练流程实现"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        between_frameworks=False,
        why=Text(
            "Two implementations of the trainer order and batch their work differently; switching "
            "them has decided an outcome (JustRL#5).",
            "两种训练流程实现的分批与顺序不同；有案例仅切换它就改变了结果（JustRL#5）。",
        ),
    ),
    Field(
        "trainer.mode.*",
        Rung.DATA,
        Text("setting of the trainer", "训练流程设置"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        between_frameworks=False,
    ),
    Field(
        "trainer.world_size",
        Rung.FORWARD,
        Text("number of devices", "设备总数"),
        unit="devices",
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=Text(
            "Sums run over other shards and each device averages other rows: rounding-sized "
            "shifts from the first step on.",
            "求和分布在不同的切分上，每张卡平均的行也不同：从第一步起有舍入量级的偏移。",
        ),
    ),
    Field(
        "trainer.num_nodes",
        Rung.FORWARD,
        Text("number of machines", "机器数"),
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_SPLIT,
        follows=("trainer.world_size",),
    ),
    _split("actor.tensor_parallel_size", "tensor parallel size", "张量并行度"),
    _split("actor.pipeline_parallel_size", "pipeline parallel size", "流水并行度"),
    _split("actor.context_parallel_size", "context or Ulysses parallel size", "上下文并行度"),
    _split("actor.expert_parallel_size", "expert parallel size", "专家并行度"),
    _split("actor.sequence_parallel", "sequence parallelism", "序列并行", ValueKind.FLAG),
    _split("actor.fsdp_size", "FSDP group size", "FSDP 分组大小"),
    _split("actor.compile", "torch.compile", "torch.compile", ValueKind.FLAG),
    _split("actor.deterministic", "deterministic kernels", "确定性算子", ValueKind.FLAG),
    _split("actor.seed", "seed of the training process", "训练进程随机种子"),
    Field(
        "actor.parallel_options.*",
        Rung.FORWARD,
        Text("option of sharding", "切分选项"),
        ValueKind.ANY,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_SPLIT,
        between_frameworks=False,
    ),
    _harmless("actor.recompute", Rung.FORWARD, "activations are recomputed", "重计算激活"),
    _harmless(
        "actor.recompute_options.*", Rung.FORWARD, "what is recomputed", "重计算范围", ValueKind.ANY
    ),
    _harmless(
        "actor.offload.*",
        Rung.OPTIMIZER,
        "tensors kept in host memory",
        "张量卸载到主机内存",
        ValueKind.ANY,
    ),
    _harmless(
        "ref.offload", Rung.FORWARD, "reference model kept in host memory", "参考模型卸载到主机内存"
    ),
    _harmless("trainer.device", Rung.ENVIRONMENT, "kind of device", "设备类型", ValueKind.NAME),
    Field(
        "trainer.resume",
        Rung.FORWARD,
        Text("starting from a checkpoint", "从检查点恢复"),
        ValueKind.ANY,
        severity=Severity.INFO,
        between_frameworks=False,
        why=Text(
            "If a checkpoint exists, training starts from other weights.",
            "若存在检查点，训练会从不同的权重开始。",
        ),
    ),
)
