"""A run that reports another loss than its configuration declares, as a finding."""

from __future__ import annotations

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.referee.examine import Examined, Misfit
from align.referee.hypotheses import Hypothesis

UNKNOWN = "loss.recomputed_differs"
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def loss_finding(run: Examined, *, alone: bool) -> Finding:
    """Describe the misfits of a run.

    Args:
        alone: the other run computes what it declares.
    """
    cause, first = run.cause, run.misfits[0]
    return Finding(
        id=UNKNOWN if cause is None else cause.id,
        rung=Rung.LOSS,
        severity=Severity.ERROR if cause is not None and alone else Severity.WARNING,
        title=_title(run, cause, first),
        reference=_shown(run, Side.REFERENCE, first),
        candidate=_shown(run, Side.CANDIDATE, first),
        evidence=tuple(
            evidence for misfit in run.misfits for evidence in _evidence(run.side, misfit, cause)
        ),
        why=_why(run, cause),
        fix=cause.fix if cause is not None else _FIX_UNKNOWN,
        mechanism=Mechanism(Rung.LOSS, Strength.SEMANTIC, ("actor/*loss*",)),
    )


def _title(run: Examined, cause: Hypothesis | None, first: Misfit) -> Text:
    side = run.side
    counts = f"{run.num_misfits} of {run.num_reports} updates"
    counts_zh = f"{run.num_reports} 次更新中有 {run.num_misfits} 次"
    if cause is None:
        return Text(
            f"the {side.value} does not report the {first.metric} its configuration declares: "
            f"{counts}, first at step {first.report.step}",
            f"{_ZH[side]}报告的 {first.metric} 与其配置所声明的不符：{counts_zh}，"
            f"最早在第 {first.report.step} 步",
        )
    return Text(
        f"the {side.value} {cause.what.en}: {counts} report a loss that this formula gives to "
        f"rounding and the declared one does not, first at step {first.report.step}",
        f"{_ZH[side]}{cause.what.zh}：{counts_zh}报告的损失与该公式在舍入范围内相等，"
        f"而与所声明的公式不等，最早在第 {first.report.step} 步",
    )


def _shown(run: Examined, side: Side, first: Misfit) -> float:
    """Show the reported number on the side that is wrong, what it declares on the other."""
    return first.reported if side is run.side else first.declared.value


def _evidence(side: Side, misfit: Misfit, cause: Hypothesis | None) -> list[Evidence]:
    report, metric = misfit.report, misfit.metric
    key = f"{metric}, {report.place.en} of step {report.step}"
    found = [
        Evidence(str(report.source), side, key=key, values=(misfit.reported,)),
        Evidence(
            f"as declared, float64 (± {misfit.declared.rounding:.2g})",
            side,
            key=key,
            values=(misfit.declared.value,),
        ),
    ]
    if cause is not None:
        amount = report.amounts(cause.objective).get(metric)
        if amount is not None:
            found.append(Evidence(f"if it {cause.what.en}", side, key=key, values=(amount.value,)))
    return found


def _why(run: Examined, cause: Hypothesis | None) -> Text:
    assumed = (
        Text(
            " The updates' own log_probs are not recorded; with one update a step they are "
            "old_log_probs.",
            "更新自身的 log_probs 未记录；每步只更新一次时它们就是 old_log_probs。",
        )
        if run.assumed
        else Text("", "")
    )
    if cause is not None:
        return Text(
            "Of the formulas tried, this one alone gives every reported number, and the gradient "
            f"follows the loss: another objective is optimised.{assumed.en}",
            "在所尝试的公式中，只有这一个能给出全部报告值；梯度由损失决定，"
            f"因此优化的是另一个目标。{assumed.zh}",
        )
    ids = sorted({fit.id for fit in run.fits})
    if ids:
        names = ", ".join(ids)
        return Text(
            f"Several formulas give every reported number ({names}), so the cause is open."
            f"{assumed.en}",
            f"有多个公式能给出全部报告值（{names}），因此原因未定。{assumed.zh}",
        )
    return Text(
        "None of the formulas tried gives every reported number, so the cause is unknown."
        f"{assumed.en}",
        f"所尝试的公式都不能给出全部报告值，因此原因未知。{assumed.zh}",
    )


_FIX_UNKNOWN = Text(
    "Repeat this step with one micro-batch an update, kl_loss_coef=0 and entropy_coeff=0: the term "
    "whose removal makes the number right is the one to look at.",
    "用每次更新一个 micro-batch、kl_loss_coef=0、entropy_coeff=0 重跑这一步："
    "去掉哪一项后数值变对，就检查哪一项。",
)
