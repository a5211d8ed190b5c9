"""What the weight sync rung says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text

_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


class Sync(Enum):
    """What the engine holds instead of the trainer's weights."""

    NOT_SYNCED = "not_synced"
    STALE = "stale"
    MISSING = "missing"
    PERMUTED = "permuted"
    SCALED = "scaled"
    ROUNDED = "rounded"
    OTHER = "differs"


@dataclass(frozen=True, slots=True)
class Broken:
    """The first step at which the engine's weights are not the trainer's.

    Args:
        names: of the differing parameters.
        error: largest relative error.
        of_step: step whose trainer weights the engine holds; None where it is none recorded.
        factor: of the trainer's weights that the engine holds; None where it is none.
    """

    kind: Sync
    step: int
    source: str
    names: tuple[str, ...]
    error: float
    num_compared: int
    of_step: int | None = None
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Wording:
    """Texts of one kind."""

    title: Text
    why: Text
    fix: Text


def finding(side: Side, broken: Broken, severity: Severity) -> Finding:
    """Make the finding of one side."""
    words, held = WORDING[broken.kind], broken.of_step
    count = f"{len(broken.names)}/{broken.num_compared}"
    of = (
        Text("", "") if held is None else Text(f", those of step {held}", f"（第 {held} 步的权重）")
    )
    if broken.factor is not None:
        of = Text(f", {broken.factor:.3g} times", f"（{broken.factor:.3g} 倍）")
    return Finding(
        id=f"weight_sync.{broken.kind.value}",
        rung=Rung.WEIGHT_SYNC,
        severity=severity,
        title=Text(
            f"{words.title.en} in the {side.value}: {count} parameters at step "
            f"{broken.step}{of.en}",
            f"{_ZH[side]}侧{words.title.zh}：第 {broken.step} 步 {count} 个参数{of.zh}",
        ),
        reference=broken.error if side is Side.REFERENCE else 0.0,
        candidate=broken.error if side is Side.CANDIDATE else 0.0,
        evidence=(
            Evidence(
                broken.source,
                side,
                key=f"step {broken.step} engine_parameter",
                text=f"relative error up to {broken.error:.3g}: {', '.join(broken.names)}"[:200],
            ),
        ),
        why=words.why,
        fix=words.fix,
        mechanism=None
        if severity is Severity.INFO
        else Mechanism(
            Rung.ROLLOUT, Strength.SEMANTIC, ("training/rollout_probs_diff*", "rollout_corr/*")
        ),
    )


WORDING: Mapping[Sync, Wording] = {
    Sync.NOT_SYNCED: Wording(
        Text(
            "the rollout engine keeps the weights it started with", "推理引擎一直使用启动时的权重"
        ),
        Text(
            "The engine's weights equal the trainer's at the first recorded step, and still do "
            "after later syncs: responses come from the starting model.",
            "推理引擎的权重等于训练侧第一个已记录 step 的权重，之后的同步也没有改变它："
            "回复始终来自初始模型。",
        ),
        Text(
            "Check that the sync after each update reaches the engine: names that do not match, "
            "a copy that is updated instead, or a sleep mode that drops the update.",
            "请检查每次更新后的同步是否真正写入引擎：参数名不匹配、更新的是副本，"
            "或 sleep 模式丢弃了更新。",
        ),
    ),
    Sync.STALE: Wording(
        Text("the rollout engine is one sync behind", "推理引擎落后一次同步"),
        Text(
            "The engine's weights equal those the trainer had at an earlier step: training is "
            "off-policy by one step more than configured.",
            "推理引擎的权重等于训练侧更早一步的权重：训练比配置多偏离策略一步。",
        ),
        Text(
            "Sync after the optimizer step and before generating, and wait for the copy to end.",
            "请在优化器更新之后、生成之前同步，并等待拷贝完成。",
        ),
    ),
    Sync.MISSING: Wording(
        Text("the rollout engine lacks weights of the trainer", "推理引擎缺少训练侧的权重"),
        Text(
            "The engine has no tensor of that name, or fewer elements of it over all its ranks: "
            "what the trainer learns there never reaches the responses.",
            "引擎中没有该名称的张量，或各 rank 合计的元素更少：训练侧在这些参数上的更新"
            "不会体现在回复中。",
        ),
        Text(
            "Check tied embeddings on both sides (tie_word_embeddings), names that the sync maps, "
            "and that every rank of the engine was recorded.",
            "请检查两侧的词表共享设置（tie_word_embeddings）、同步时的参数名映射，"
            "以及引擎的每个 rank 是否都有记录。",
        ),
    ),
    Sync.ROUNDED: Wording(
        Text(
            "the rollout engine holds the trainer's weights rounded to 16 bits",
            "推理引擎持有的是舍入到 16 位的训练侧权重",
        ),
        Text(
            "The error of every parameter is that of one rounding, although the engine's tensors "
            "are wider: the sync goes through a narrower dtype.",
            "每个参数的误差都等于一次舍入的误差，而引擎中的张量更宽：同步经过了更窄的数据类型。",
        ),
        Text(
            "Send weights in the dtype the engine holds them in, or compare with an engine of that "
            "dtype on both sides.",
            "以引擎中的数据类型发送权重，或让两侧都使用同一数据类型的引擎。",
        ),
    ),
    Sync.SCALED: Wording(
        Text(
            "the rollout engine holds a multiple of the trainer's weights",
            "推理引擎中的权重是训练侧的若干倍",
        ),
        Text(
            "One factor takes the trainer's tensors to the engine's: a scale of a quantisation, of "
            "an adapter's merge, or of an average over ranks is applied twice or not at all.",
            "训练侧张量乘以同一系数即得引擎的张量：量化、适配器合并或跨 rank 平均的缩放"
            "被重复施加或遗漏。",
        ),
        Text(
            "Look for a scale between the trainer's state dict and the engine's load: lora_alpha/r "
            "merged twice, scales of FP8 or INT8, a sum over ranks in place of a gather.",
            "请检查从训练侧 state dict 到引擎加载之间的缩放：lora_alpha/r 合并两次、FP8 或 INT8 "
            "的缩放，或把 gather 写成了跨 rank 求和。",
        ),
    ),
    Sync.PERMUTED: Wording(
        Text(
            "the rollout engine holds the weights in another order", "推理引擎中权重的排列顺序不同"
        ),
        Text(
            "The differing tensors hold the same values as the trainer's, in another order: the "
            "layout of a fused tensor (query groups against q, k, v; gate and up) is read wrongly.",
            "不同的张量与训练侧数值相同、顺序不同：融合张量（按 query group 与按 q、k、v，"
            "或 gate 与 up）的排列方式理解有误。",
        ),
        Text(
            "Compare how the sync splits or joins the fused tensor with the layout the engine "
            "expects.",
            "请对照同步时融合张量的拆分、拼接方式与引擎所要求的排列。",
        ),
    ),
    Sync.OTHER: Wording(
        Text("the rollout engine holds other weights than the trainer", "推理引擎与训练侧权重不同"),
        Text(
            "The difference is larger than the rounding of the engine's dtype, and the weights are "
            "those of no other recorded step, in no other order, and no multiple of them.",
            "差异大于引擎数据类型的舍入误差，且不等于任何其他已记录 step 的权重，"
            "也不是重排或若干倍。",
        ),
        Text(
            "Compare the listed parameters right after a sync: quantisation, adapters that are "
            "not merged, or a tensor that is never sent and keeps what the engine started with.",
            "请在同步之后立即对照所列参数：量化、未合并的适配器，"
            "或从未发送、仍为引擎初始值的张量。",
        ),
    ),
}
