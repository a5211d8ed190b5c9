"""What two DPO runs are found to do otherwise, as findings."""

from __future__ import annotations

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.referee.preference_examine import ExaminedPreferences, PreferenceMisfit
from align.referee.preference_inputs import GradientsApart, LogProbsApart, OtherPairs, PairsKind

UNKNOWN = "loss.preference"
_METRICS = ("loss", "rewards/*", "logps/*", "actor/*loss*")
_QUOTED = 3
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def preference_finding(run: ExaminedPreferences, *, alone: bool) -> Finding:
    """Describe the losses of a run that are not its configuration's.

    Args:
        alone: the other run's are.
    """
    cause, first = run.cause, run.misfits[0]
    numbers = (first.given.loss, first.declared.value)
    return Finding(
        id=UNKNOWN if cause is None else cause.id,
        rung=Rung.LOSS,
        severity=Severity.ERROR if alone else Severity.WARNING,
        title=_title(run, first),
        reference=numbers[run.side is Side.CANDIDATE],
        candidate=numbers[run.side is Side.REFERENCE],
        evidence=tuple(e for each in run.misfits[:_QUOTED] for e in _evidence(run, each)),
        why=_why(run),
        fix=_FIX_UNKNOWN if cause is None else cause.fix,
        mechanism=Mechanism(Rung.LOSS, Strength.SEMANTIC, _METRICS),
    )


def _title(run: ExaminedPreferences, first: PreferenceMisfit) -> Text:
    count, step = f"{len(run.misfits)} of {run.num_judged} micro-batches", first.given.step
    count_zh = f"{run.num_judged} 个 micro-batch 中有 {len(run.misfits)} 个"
    side = run.side
    if run.cause is None:
        return Text(
            f"the {side.value}'s loss of pairs is not the one its configuration declares: {count}, "
            f"first at step {step}",
            f"{_ZH[side]}的偏好损失与其配置所声明的不符：{count_zh}，最早在第 {step} 步",
        )
    return Text(
        f"the {side.value} {run.cause.what.en}: {count} have the loss that this gives to rounding "
        f"and not the declared one, first at step {step}",
        f"{_ZH[side]}{run.cause.what.zh}：{count_zh}的损失与该公式在舍入范围内相等，"
        f"而与所声明的不等，最早在第 {step} 步",
    )


def _evidence(run: ExaminedPreferences, misfit: PreferenceMisfit) -> tuple[Evidence, ...]:
    given = misfit.given
    key = f"loss, step {given.step}, rank {given.rank}, micro-batch {given.micro}"
    formula = " + ".join(f"{weight:g} {name}" for name, weight in run.objective.types)
    return (
        Evidence(given.source, run.side, key=key, values=(given.loss,)),
        Evidence(
            f"{formula}, beta {run.objective.beta:g}, float64 (± {misfit.declared.rounding:.2g})",
            run.side,
            key=key,
            values=(misfit.declared.value,),
        ),
    )


def _why(run: ExaminedPreferences) -> Text:
    if run.cause is not None:
        return Text(
            "Of the formulas tried, this one alone gives every recorded loss from the recorded "
            "log_probs, and the gradient follows the loss.",
            "在所尝试的公式中，只有这一个能由所记录的 log_probs 给出全部损失；梯度由损失决定。",
        )
    if run.found:
        names = ", ".join(sorted({each.id for each in run.found}))
        return Text(
            f"Several formulas give every recorded loss ({names}), so the cause is open.",
            f"有多个公式能给出全部损失（{names}），因此原因未定。",
        )
    return Text(
        "None of the formulas tried gives every recorded loss, so the cause is unknown.",
        "所尝试的公式都不能给出全部损失，因此原因未知。",
    )


def pairs_finding(other: OtherPairs) -> Finding:
    """Describe the first step with other pairs."""
    what = _PAIRS[other.kind]
    counts = f"{other.num_other} pairs of the candidate's at step {other.step}"
    return Finding(
        id="loss.preference_pairs",
        rung=Rung.LOSS,
        severity=Severity.ERROR,
        title=Text(
            f"the runs train on other pairs: {counts} are none of the reference's "
            f"{other.num_pairs}; {what.en}",
            f"两次运行训练的样本对不同：被测第 {other.step} 步有 {other.num_other} 对不在参考的 "
            f"{other.num_pairs} 对之中；{what.zh}",
        ),
        reference=other.num_pairs,
        candidate=other.num_other,
        evidence=_sources(other.sources, "input_ids", other.step),
        why=Text(
            "Every later number follows from which pairs a step trains on; "
            f"{other.num_elsewhere} of these are trained on by the reference at another recorded "
            "step.",
            "之后的所有数值都取决于每步训练哪些样本对；"
            f"其中 {other.num_elsewhere} 对在参考的其他已记录步中被训练。",
        ),
        fix=_PAIRS_FIX[other.kind],
        mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
    )


def log_probs_findings(apart: LogProbsApart) -> list[Finding]:
    """Describe whose log_probs of equal pairs differ, the reference's before the policy's."""
    found = []
    if apart.reference_differs and apart.reference is not None:
        found.append(_log_probs_finding(apart, apart.reference, "ref_log_prob", _REFERENCE))
    if apart.policy_differs and apart.policy is not None:
        found.append(_log_probs_finding(apart, apart.policy, "log_probs", _POLICY))
    return found


def moved_finding(apart: LogProbsApart) -> Finding:
    """Describe references that agree at first and are apart later."""
    assert apart.reference is not None
    return _log_probs_finding(apart, apart.reference, "ref_log_prob", _MOVED)


def _log_probs_finding(
    apart: LogProbsApart, distance: float, key: str, texts: tuple[str, Text, Text]
) -> Finding:
    id_, what, fix = texts
    return Finding(
        id=id_,
        rung=Rung.LOSS,
        severity=Severity.ERROR,
        title=Text(
            f"{what.en} give equal pairs other log_probs at step {apart.step}: {distance:.3g} nats "
            "a token on average",
            f"{what.zh}在第 {apart.step} 步对相同样本对给出的 log_probs 不同："
            f"平均每 token 相差 {distance:.3g} nats",
        ),
        reference=0.0,
        candidate=distance,
        evidence=_sources(apart.sources, key, apart.step),
        why=_WHY_LOG_PROBS,
        fix=fix,
        mechanism=Mechanism(Rung.FORWARD, Strength.SEMANTIC),
    )


def gradients_finding(apart: GradientsApart) -> Finding:
    """Describe gradients that differ though pairs, log_probs and losses do not."""
    one, other = apart.norms
    ratio = other / one if one else float("inf")
    return Finding(
        id="loss.preference_gradient",
        rung=Rung.LOSS,
        severity=Severity.ERROR,
        title=Text(
            "equal pairs with equal losses have other gradients: the candidate's norm is "
            f"{ratio:.3g} times the reference's at step {apart.step}",
            f"样本对与损失都相同而梯度不同：第 {apart.step} 步被测的梯度范数是参考的 "
            f"{ratio:.3g} 倍",
        ),
        reference=one,
        candidate=other,
        evidence=_sources(apart.sources, "gradient_squares", apart.step),
        why=Text(
            "The difference is made between loss and gradient: another scaling of micro-batches, "
            "one of them lost, gradients kept from before, or a part of the loss without gradient.",
            "差异产生于损失到梯度之间：micro-batch 的缩放不同、丢失了其中之一、"
            "保留了之前的梯度，或损失的某一部分没有梯度。",
        ),
        fix=Text(
            "Compare gradient_accumulation_steps and what divides the loss, zero_grad, and where "
            "the graph is detached; `align capture --what sketches` shows which layer is first.",
            "请对照 gradient_accumulation_steps、损失的除数、zero_grad 以及何处 detach；"
            "`align capture --what sketches` 会显示最先不同的层。",
        ),
        mechanism=Mechanism(Rung.BACKWARD, Strength.SEMANTIC, ("actor/grad_norm",)),
    )


def _sources(sources: tuple[str, str], key: str, step: int) -> tuple[Evidence, ...]:
    sides = (Side.REFERENCE, Side.CANDIDATE)
    return tuple(
        Evidence(source, side, key=f"{key}, step {step}")
        for source, side in zip(sources, sides, strict=True)
    )


_FIX_UNKNOWN = Text(
    "Repeat a step with one pair a micro-batch and compare the terms of its loss one by one.",
    "用每个 micro-batch 一对样本重跑一步，逐项对照损失的各个部分。",
)
_WHY_LOG_PROBS = Text(
    "The token ids are the same, so the models differ: their weights, their dtype, their code, or "
    "how padded rows are computed. More than rounding would do, and more than the other of the two "
    "models differs by.",
    "token id 相同，因此模型不同：权重、数据类型、代码，或对填充行的计算方式。"
    "该差异超出舍入，也超出两个模型中另一个的差异。",
)
_REFERENCE = (
    "loss.preference_ref_log_prob",
    Text("the reference models", "两侧的参考模型"),
    Text(
        "Compare ref_model, precompute_ref_log_probs (its cache may be of another model) and the "
        "adapter that is switched off for the reference.",
        "请对照 ref_model、precompute_ref_log_probs（其缓存可能来自另一个模型）"
        "以及计算参考时被关闭的 adapter。",
    ),
)
_MOVED = (
    "loss.preference_ref_moved",
    Text(
        "the reference models agree at first, and later",
        "两侧的参考模型起初一致，之后",
    ),
    Text(
        "A reference is frozen: look whether one shares weights with the policy, is synchronised "
        "with it (sync_ref_model), or is in training mode.",
        "参考模型应保持冻结：请检查它是否与策略共享权重、被同步（sync_ref_model），"
        "或处于训练模式。",
    ),
)
_POLICY = (
    "loss.preference_log_probs",
    Text("the policies", "两侧的策略模型"),
    Text(
        "Compare the checkpoints that both runs start from, their dtype, and dropout; then "
        "`align layers diff`.",
        "请对照两次运行的起始检查点、数据类型与 dropout；再运行 `align layers diff`。",
    ),
)
_PAIRS = {
    PairsKind.EXCHANGED: Text(
        "they are the same responses with chosen and rejected exchanged",
        "它们是 chosen 与 rejected 互换的相同回答",
    ),
    PairsKind.ORDER: Text("pairs come in another order", "样本对的顺序不同"),
    PairsKind.RESPONSES: Text(
        "the prompts are the same, the ids of the responses are not",
        "prompt 相同而回答的 token id 不同",
    ),
    PairsKind.OTHER: Text(
        "none of them is seen elsewhere in the reference", "它们都没有在参考的其他步中出现"
    ),
}
_ORDER_FIX = Text(
    "Compare seed, data_seed, shuffling, the number of processes and the batch size.",
    "请对照 seed、data_seed、是否打乱、进程数与 batch 大小。",
)
_IDS_FIX = Text(
    "Compare the data sets' files, chat template, tokenizer, eos at the end, max_length and "
    "truncation_mode.",
    "请对照数据文件、对话模板、分词器、末尾的 eos、max_length 与 truncation_mode。",
)
_PAIRS_FIX = {
    PairsKind.EXCHANGED: Text(
        "Look at which column of the data is read as chosen.", "请检查数据的哪一列被当作 chosen。"
    ),
    PairsKind.ORDER: _ORDER_FIX,
    PairsKind.RESPONSES: _IDS_FIX,
    PairsKind.OTHER: Text(f"{_ORDER_FIX.en} {_IDS_FIX.en}", f"{_ORDER_FIX.zh}{_IDS_FIX.zh}"),
}
