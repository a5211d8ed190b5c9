"""Advantage rung of PPO: are the recorded advantages those of the recorded rewards and values?

An invariant within one run: responses of the two runs need not be alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from align.config.normalise import effective
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.referee.estimates import (
    DISCOUNT,
    TENSORS,
    VALUES,
    Declared,
    are_whitened_returns,
    as_computed,
    declared_estimate,
    differing_returns,
    differing_tokens,
    formula_of,
)
from align.referee.step_batch import StepBatch, batches
from align.rollout.advantage_formulas import NORMALIZATION, SCORES_MOVED
from dumps.store.run_data import RunData

_QUOTED = 3
_OPTIONAL = ("returns", "token_level_scores")
_KEPT = 4  # steps that a mistake must explain
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


@dataclass(frozen=True, slots=True)
class Estimated:
    """One run's steps that record what GAE needs.

    Args:
        num_differing: on which any recorded advantage is not the declared one.
        differing: the first of these.
        other_returns: the first step whose returns are not the declared ones.
        at_end: whether every row of one score has it on its last counting token; None where
            there are no such rows, or both.
    """

    side: Side
    declared: Declared
    num_steps: int
    num_differing: int
    differing: tuple[StepBatch, ...]
    other_returns: StepBatch | None
    at_end: bool | None


def compare_estimates(reference: RunData, candidate: RunData) -> RungResult | None:
    """Estimate both runs' advantages again; None unless both declare GAE and record its inputs."""
    sides = ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    found = [_estimated(side, run) for side, run in sides]
    both = [run for run in found if run is not None]
    if len(both) < len(found):
        return None
    wrong = [run for run in both if run.differing]
    if len(wrong) == 1:
        finding = _finding(wrong[0])
        title = finding.title
        summary = Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。")
        return RungResult(Rung.ADVANTAGE, RungStatus.DIVERGED, summary, (finding,))
    if wrong:
        return RungResult(Rung.ADVANTAGE, RungStatus.UNDECIDED, _BOTH)
    further = _returns_finding(both) or _place_finding(both)
    if further is not None:
        title = further.title
        summary = Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。")
        return RungResult(Rung.ADVANTAGE, RungStatus.DIVERGED, summary, (further,))
    return RungResult(Rung.ADVANTAGE, RungStatus.ALIGNED, _aligned(both))


def _estimated(side: Side, run: RunData) -> Estimated | None:
    declared = declared_estimate(effective(run.configs, run.run.manifest))
    if declared is None:
        return None
    num_steps = num_differing = 0
    kept: list[StepBatch] = []
    returns: StepBatch | None = None
    ends: set[bool] = set()
    for batch in batches(run, (*TENSORS, *_OPTIONAL)):
        if batch.get(*TENSORS) is None:
            continue
        num_steps += 1
        if num_steps == 1:
            declared = as_computed(declared, batch)
        if bool(differing_tokens(batch, declared).any()):
            num_differing += 1
            kept += [batch] if len(kept) < _KEPT else []
        if returns is None and bool(differing_returns(batch, declared).any()):
            returns = batch
        ends |= _are_at_end(batch)
    if not num_steps:
        return None
    at_end = next(iter(ends)) if len(ends) == 1 else None
    return Estimated(side, declared, num_steps, num_differing, tuple(kept), returns, at_end)


def _are_at_end(batch: StepBatch) -> set[bool]:
    """Tell of rows of one score whether it is on their last counting token."""
    both = batch.get("token_level_scores", "response_mask")
    if both is None:
        return set()
    scored, left = both[0] != 0, both[1].flip(1).cumsum(1).flip(1)  # counting from here on
    ends = (scored & (left > 1)).sum(1) == 0
    return set(ends[scored.sum(1) == 1].tolist())


def _returns_finding(both: Sequence[Estimated]) -> Finding | None:
    wrong = [run for run in both if run.other_returns is not None]
    if len(wrong) != 1:
        return None
    run, side = wrong[0], wrong[0].side
    first = run.other_returns
    assert first is not None
    far = differing_returns(first, run.declared)
    rewards, values, mask, _ = first.get(*TENSORS) or ()
    expected = run.declared.returns(rewards, values, mask)
    row, token = far.nonzero()[0].tolist()
    count, total = int(far.sum()), int(mask.sum())
    what = Text(
        "returns are not its values plus its advantages before whitening",
        "return 不等于 value 与白化前 advantage 之和",
    )
    if are_whitened_returns(first):
        what = Text(
            "returns are its values plus the whitened advantages",
            "return 等于 value 与白化后的 advantage 之和",
        )
    return Finding(
        id="advantage.recomputed_differs",
        rung=Rung.ADVANTAGE,
        severity=Severity.ERROR,
        title=Text(
            f"the {side.value}'s {what.en}: {count} of {total} tokens at step {first.step}",
            f"{_ZH[side]}的 {what.zh}：第 {first.step} 步 {total} 个 token 中有 {count} 个",
        ),
        reference=count if side is Side.REFERENCE else 0,
        candidate=count if side is Side.CANDIDATE else 0,
        evidence=tuple(
            Evidence(source, side, key=f"returns[{row}, {token}]", values=(float(own),))
            for source, own in (
                (first.source, first.tensors["returns"][row, token]),
                (run.declared.text, expected[row, token]),
            )
        ),
        why=Text(
            "Returns are what the critic learns; the advantages agree with the configuration, and "
            "so do the other run's returns.",
            "return 是 critic 的学习目标；advantage 与配置相符，另一侧的 return 也相符。",
        ),
        fix=Text(
            "Take returns from the advantages before they are whitened.",
            "在白化之前由 advantage 得到 return。",
        ),
        mechanism=Mechanism(Rung.ADVANTAGE, Strength.SEMANTIC),
    )


def _place_finding(both: Sequence[Estimated]) -> Finding | None:
    wrong = [run for run in both if run.at_end is False]
    if len(wrong) != 1 or not any(run.at_end for run in both):
        return None
    side = wrong[0].side
    return Finding(
        id=f"advantage.{SCORES_MOVED}",
        rung=Rung.ADVANTAGE,
        severity=Severity.ERROR,
        title=Text(
            f"the {side.value}'s scores are not on the last token of their rows, where the "
            "other run's are",
            f"{_ZH[side]}的得分不在各行的最后一个 token 上，而另一侧在",
        ),
        reference=0,
        candidate=1,
        evidence=(Evidence("trainer_inputs", side, key="token_level_scores"),),
        why=Text(
            "GAE discounts a score from its token backwards: tokens after it earn nothing.",
            "GAE 从得分所在的 token 向前折扣：其后的 token 得不到奖励。",
        ),
        fix=Text(
            "Put a response's score on its last token (verl: the index of rm_scores).",
            "把回复的得分放在最后一个 token 上（verl：rm_scores 的下标）。",
        ),
        mechanism=Mechanism(Rung.ADVANTAGE, Strength.SEMANTIC),
    )


def _aligned(both: Sequence[Estimated]) -> Text:
    counts = [run.num_steps for run in both]
    return Text(
        f"Both runs' advantages are {both[0].declared.text} of their own rewards and values "
        f"({counts[0]} and {counts[1]} steps).",
        "两次运行的 advantage 都与各自奖励与 value 按 GAE 计算的结果一致"
        f"（{counts[0]} 步与 {counts[1]} 步）。",
    )


def _finding(run: Estimated) -> Finding:
    first, declared, side = run.differing[0], run.declared, run.side
    far = differing_tokens(first, declared)
    places = far.nonzero()[:_QUOTED].tolist()
    rewards, values, mask, recorded = first.get(*TENSORS) or ()
    expected = declared.whitened(rewards, values, mask)
    formula = formula_of(list(run.differing), declared)
    count, total = int(far.sum()), int(mask.sum())
    where = Text(
        f"{count} of {total} tokens at step {first.step} "
        f"({run.num_differing} of {run.num_steps} steps)",
        f"第 {first.step} 步 {total} 个 token 中有 {count} 个"
        f"（{run.num_steps} 步中有 {run.num_differing} 步）",
    )
    title = Text(
        f"the {side.value}'s advantages are not {declared.text} of its rewards and values: "
        f"{where.en}",
        f"{_ZH[side]}的 advantage 与其奖励、value 按 GAE 计算的结果不符：{where.zh}",
    )
    if formula is not None:
        title = Text(
            f"for its advantages the {side.value} {formula.what.en}: {where.en}",
            f"计算 advantage 时，{_ZH[side]}{formula.what.zh}：{where.zh}",
        )
    kind = "recomputed_differs" if formula is None else formula.kind
    return Finding(
        id=f"advantage.{kind}",
        rung=Rung.ADVANTAGE,
        severity=Severity.ERROR,
        title=title,
        reference=count if side is Side.REFERENCE else 0,
        candidate=count if side is Side.CANDIDATE else 0,
        evidence=tuple(
            Evidence(source, side, key=f"advantages[{row}, {token}]", values=(value,))
            for row, token in places
            for source, value in (
                (first.source, float(recorded[row, token])),
                (declared.text, float(expected[row, token])),
            )
        ),
        why=Text(
            "Advantages follow from the rewards, the values, γ and λ alone, and the other run's "
            "do; other advantages reinforce other tokens.",
            "advantage 只取决于奖励、value、γ 与 λ，另一侧符合这一点；"
            "advantage 不同，被强化的 token 也就不同。",
        ),
        fix=_FIXES.get(kind, _FIX),
        mechanism=Mechanism(Rung.ADVANTAGE, Strength.SEMANTIC),
    )


_BOTH = Text(
    "Neither run's advantages are those of its rewards and values.",
    "两次运行的 advantage 都与各自奖励、value 的计算结果不符。",
)
_FIX = Text(
    "Compare the quoted tokens with the recursion: δ = r + γ V' - V, A = δ + γλ A', over counting "
    "tokens from the last to the first, then whitened.",
    "用递推式对照引用的 token：δ = r + γ V' - V，A = δ + γλ A'，"
    "从最后一个有效 token 向前，再白化。",
)
_FIXES = {
    DISCOUNT: Text(
        "Pass algorithm.gamma and algorithm.lam (MindSpeed-RL gamma, lam) to the estimator.",
        "把 algorithm.gamma 与 algorithm.lam（MindSpeed-RL 为 gamma、lam）传给估计函数。",
    ),
    VALUES: Text(
        "Cut values as log_probs are cut: the value before a token is that of the position that "
        "predicts it, response_length columns ending one before the last.",
        "value 的截取须与 log_probs 相同：某 token 之前的 value 位于预测它的位置，"
        "即末列之前的 response_length 列。",
    ),
    NORMALIZATION: Text(
        "Whiten over the response mask of the whole batch, after GAE and before the loss.",
        "在 GAE 之后、损失之前，按整个 batch 的 response_mask 做白化。",
    ),
}
