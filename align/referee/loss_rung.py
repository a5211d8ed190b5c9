"""Loss rung: do the reported losses follow from what each update computed with, as declared?

An invariant within one run: the two runs' responses need not be alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from align.config.normalise import effective
from align.core.finding import Finding, Severity, Side
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.referee.examine import Examined, examine
from align.referee.loss_findings import loss_finding
from align.referee.moved_rows import moved_finding, moved_rows
from align.referee.training_pass import training_pass_finding
from dumps.store.run_data import RunData


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Recompute every recorded loss of both runs from their own tensors."""
    runs = ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    both = [
        (side, examine(side, run, effective(run.configs, run.run.manifest))) for side, run in runs
    ]
    refused = [(side, found) for side, found in both if isinstance(found, Text)]
    if refused:
        return _missing(refused)
    examined = [found for _, found in both if isinstance(found, Examined)]
    moved = moved_finding({side: moved_rows(run) for side, run in runs})
    passes = training_pass_finding({run.side: run.passes for run in examined})
    return _judge(examined, moved or passes)


def _judge(both: Sequence[Examined], moved: Finding | None) -> RungResult:
    """Join what the losses show with a finding of what they are made of.

    Args:
        moved: of the rows' advantages, or of the passes before and in training.
    """
    wrong = [run for run in both if run.misfits]
    if not wrong and moved is None:
        return RungResult(Rung.LOSS, RungStatus.ALIGNED, _aligned(both))
    causes = [run.cause.id if run.cause else None for run in wrong]
    if len(wrong) == 2 and causes[0] == causes[1]:
        return RungResult(Rung.LOSS, RungStatus.UNDECIDED, _BOTH)
    of_losses = tuple(loss_finding(run, alone=len(wrong) == 1) for run in wrong)
    findings = (*of_losses, *(() if moved is None else (moved,)))
    title = findings[-1].title
    certain = any(finding.severity is Severity.ERROR for finding in findings)
    return RungResult(
        Rung.LOSS,
        RungStatus.DIVERGED if certain else RungStatus.UNDECIDED,
        Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。"),
        findings,
    )


def _aligned(both: Sequence[Examined]) -> Text:
    counts = [run.num_reports for run in both]
    return Text(
        "Both runs report the losses that their configurations declare "
        f"({counts[0]} and {counts[1]} reports of updates recomputed in float64).",
        f"两次运行报告的损失都与各自配置所声明的一致（以 float64 重算 {counts[0]} 次与 "
        f"{counts[1]} 次更新）。",
    )


def _missing(refused: Sequence[tuple[Side, Text]]) -> RungResult:
    side = refused[0][0].value if len(refused) == 1 else "both"
    why = refused[0][1]
    return RungResult(
        name=Rung.LOSS,
        status=RungStatus.MISSING,
        summary=Text(f"Not compared: {why.en}.", f"未比较：{why.zh}。"),
        missing=(missing_artifact(Rung.LOSS, side),),
    )


_BOTH = Text(
    "Neither run reports the losses that its configuration declares, and both depart alike.",
    "两次运行报告的损失都与配置所声明的不符，且偏离方式相同。",
)
