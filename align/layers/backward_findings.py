"""What the backward rung says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.layers.cause_text import shape_text
from align.layers.pattern import cause_of
from align.layers.walk import Compared
from dumps.store.tensor_records import TensorRecord

_QUOTED = 5
_ACTS = Mechanism(Rung.BACKWARD, Strength.SEMANTIC, ("actor/grad_norm",))
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}

AFTER_FORWARD = Text(
    "Not judged: activations differ already, and gradients are computed from them.",
    "未判定：激活已经不同，而梯度由激活计算得到。",
)
LOSS_DIFFERS = Text(
    "Not judged: the loss's gradient at the model's output differs already; the loss rung and "
    "those before it say why.",
    "未判定：损失对模型输出的梯度已经不同，原因见 loss 及更早的环节。",
)


def scaled(
    factor: float, count: int, loss_inputs: bool | None, where: tuple[Evidence, ...]
) -> Finding:
    """Say that all gradients are one multiple of the reference's."""
    known = Text("from equal loss inputs ", "在损失输入相同时，") if loss_inputs else Text("", "")
    return Finding(
        id="backward.scale",
        rung=Rung.BACKWARD,
        severity=Severity.ERROR if loss_inputs else Severity.WARNING,
        title=Text(
            f"{known.en}every gradient is {factor:.4g} times the reference's",
            f"{known.zh}被测的每个梯度都是参考的 {factor:.4g} 倍",
        ),
        reference=1.0,
        candidate=factor,
        evidence=where,
        why=Text(
            f"All {count} output gradients have this factor, from the model's output on: the loss "
            "is scaled before backward. Adam hides it; clipping and the logged norm do not.",
            f"从模型输出开始，全部 {count} 个输出梯度都带有这个系数：损失在反向之前被缩放。"
            "Adam 会掩盖它，但裁剪与日志中的范数会受影响。",
        ),
        fix=Text(
            "Compare how a micro-batch's loss is divided (number of micro-batches, tokens or "
            "data-parallel ranks) and whether gradients are averaged or summed over ranks.",
            "请对照 micro-batch 的损失除以什么（micro-batch 数、token 数或数据并行 rank 数），"
            "以及梯度在 rank 间是求平均还是求和。",
        ),
        mechanism=_ACTS,
    )


def follower_of(name: str, forward: Iterable[TensorRecord]) -> str | None:
    """Return the module that computes after another, as a whole; None after the last one.

    Args:
        forward: outputs of modules, each recorded when it is done.
    """
    ordered = sorted(forward, key=lambda record: record.order)
    after = iter(record.name for record in ordered)
    if name not in after:  # takes what comes before it, too
        return None
    other = next((each for each in after if not f"{name}.".startswith(f"{each}.")), None)
    if other is None:
        return None
    own, parts = name.split("."), other.split(".")
    shared = next((i for i, pair in enumerate(zip(own, parts, strict=False)) if len({*pair}) > 1))
    return ".".join(parts[: shared + 1])


def no_gradient(
    record: TensorRecord,
    side: Side,
    follower: str | None,
    parameters: Sequence[str],
    where: tuple[Evidence, ...],
) -> Finding:
    """Say that no gradient reaches a module on one side.

    Args:
        follower: module that computes next (`follower_of`), None where there is none.
    """
    names = ", ".join(parameters[:_QUOTED]) or "-"
    source, zh_source = ("", "") if follower is None else (f" from {follower}", f"从 {follower} ")
    place = record.name if follower is None else f"{record.name} and on its way to {follower}"
    zh_place = record.name if follower is None else f"{record.name} 以及它到 {follower} 之间"
    return Finding(
        id="backward.first_divergence",
        rung=Rung.BACKWARD,
        severity=Severity.ERROR,
        title=Text(
            f"no gradient reaches {record.name}{source} in the {side.value}",
            f"{_ZH[side]}中没有梯度{zh_source}到达 {record.name}",
        ),
        reference=record.l2 if side is Side.CANDIDATE else None,
        candidate=record.l2 if side is Side.REFERENCE else None,
        evidence=where,
        why=Text(
            "Activations and the gradients after it agree, so the graph is cut here: a detach, a "
            f"no_grad block, a frozen module or an operator without a backward. Parameters without "
            f"a gradient: {names}.",
            "激活以及在它之后的梯度均一致，说明计算图在这里被切断：detach、no_grad、被冻结的模块，"
            f"或没有反向实现的算子。没有梯度的参数：{names}。",
        ),
        fix=Text(
            f"Look for detach(), no_grad, requires_grad=False or a custom operator in {place}.",
            f"请检查 {zh_place} 的 detach()、no_grad、requires_grad=False 或自定义算子。",
        ),
        mechanism=_ACTS,
    )


def no_parameter_gradient(missing: Mapping[str, Side], where: tuple[Evidence, ...]) -> Finding:
    """Say that parameters get a gradient on one side alone, while outputs' gradients agree.

    Args:
        missing: the side that lacks it, by parameter.
    """
    first, side = next(iter(missing.items()))
    names = ", ".join([*missing][:_QUOTED])
    return Finding(
        id="backward.first_divergence",
        rung=Rung.BACKWARD,
        severity=Severity.ERROR,
        title=Text(
            f"{len(missing)} parameters get no gradient on one side: first {first} in the "
            f"{side.value}",
            f"有 {len(missing)} 个参数只在一侧有梯度：最先是 {first}，{_ZH[side]}没有",
        ),
        reference=None,
        candidate=None,
        evidence=where,
        why=Text(
            "The gradients of outputs agree, so the graph is whole, and these parameters are "
            f"detached or frozen, or their module computes with a copy: {names}.",
            "各输出的梯度一致，说明计算图完整，"
            f"而这些参数被 detach 或冻结，或其模块使用了副本：{names}。",
        ),
        fix=Text(
            f"Look for requires_grad=False, detach() and copies of {first}.",
            f"请检查 {first} 的 requires_grad=False、detach() 与副本。",
        ),
        mechanism=_ACTS,
    )


def output_departs(
    departure: Compared, follower: str | None, where: tuple[Evidence, ...], right: Text
) -> Finding:
    """Say which gradient of an output differs first, and what a referee says.

    Args:
        follower: what computes next after the output's module.
    """
    used = Text("", "")
    if follower is not None:
        used = Text(f", which {follower} takes next", f"（其后由 {follower} 使用）")
    record, found, limit = departure.reference, departure.difference, departure.limit
    shape = shape_text(cause_of(departure))
    return Finding(
        id="backward.first_divergence",
        rung=Rung.BACKWARD,
        severity=Severity.ERROR,
        title=Text(
            f"gradients differ first at the output of {record.name}{used.en}, by "
            f"{found.relative:.2g} where rounding explains {limit.value:.2g}",
            f"梯度最早在 {record.name} 的输出处{used.zh}不同，相对误差 {found.relative:.2g}，"
            f"而舍入只能解释 {limit.value:.2g}",
        ),
        reference=record.l2,
        candidate=departure.candidate.l2,
        evidence=(*where, Evidence("floor", Side.BOTH, text=limit.source[:200])),
        why=Text(
            "Activations agree, and so do the gradients computed before this one: the backward of "
            f"what uses this output differs. {shape.en}{right.en}",
            f"激活一致，在它之前计算的梯度也一致：使用该输出的算子的反向不同。{shape.zh}{right.zh}",
        ),
        fix=Text(
            f"Compare the backward of the modules that use the output of {record.name}: fused "
            "operators, recomputation, and reductions over tensor-parallel ranks.",
            f"请对照使用 {record.name} 输出的模块的反向：融合算子、重计算，"
            "以及张量并行 rank 间的规约。",
        ),
        mechanism=_ACTS,
    )


def parameters_depart(
    departed: Sequence[Compared], total: int, where: tuple[Evidence, ...]
) -> Finding:
    """Say whose own gradients differ where those of all outputs agree."""
    worst = max(departed, key=lambda compared: compared.difference.relative)
    names = [compared.reference.name for compared in departed]
    first, found = departed[0].reference.name, worst.difference
    return Finding(
        id="backward.first_divergence",
        rung=Rung.BACKWARD,
        severity=Severity.ERROR,
        title=Text(
            f"the gradients of {len(names)} of {total} parameters differ, first {first}, by up to "
            f"{found.relative:.2g}",
            f"{total} 个参数中有 {len(names)} 个的梯度不同，最先是 {first}，"
            f"相对误差最大 {found.relative:.2g}",
        ),
        reference=worst.reference.l2,
        candidate=worst.candidate.l2,
        evidence=(
            *where,
            Evidence("parameters", Side.BOTH, text=", ".join(names)[:200]),
            Evidence("floor", Side.BOTH, text=worst.limit.source[:200]),
        ),
        why=Text(
            "The gradients of all outputs agree, so only the sum over tokens that makes these "
            "parameters' gradients differs: part of the tokens or ranks is left out, or counted "
            "twice.",
            "所有输出的梯度都一致，因此只是这些参数的梯度在对 token 求和时不同："
            "漏掉或重复计算了一部分 token 或 rank。",
        ),
        fix=Text(
            "Check that gradients of replicated parameters (norms, biases, router) are all-reduced "
            "over tensor-, sequence- and context-parallel ranks.",
            "请检查重复存放的参数（norm、bias、router）的梯度是否在张量、序列、上下文并行的 rank "
            "之间做了 all-reduce。",
        ),
        mechanism=_ACTS,
    )
