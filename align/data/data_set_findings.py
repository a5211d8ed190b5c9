"""What differs between two data sets, in words."""

from __future__ import annotations

from collections.abc import Iterator

from align.core.data_set import DataSet
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.data.data_set_diff import DataSetDiff
from align.data.findings import quoted
from align.data.torch_generator import Int64

_SHOWN = 2
_WHY_ROWS = Text(
    "A sampler permutes row numbers: one row more or less, or at another place, gives every step "
    "other rows.",
    "采样器打乱的是行号：多一行、少一行或位置不同，都会使每一步的数据不同。",
)
_FIX_ROWS = Text(
    "Train both runs on one file: make it once, copy it, and compare again.",
    "两侧使用同一份数据文件：只生成一次，复制后重新比较。",
)
_WHY_LABELS = Text(
    "Rule rewards compare the response with the label, so the same response gets another score.",
    "规则奖励把回复与标准答案比较，因此同样的回复会得到不同的分数。",
)


def data_set_findings(
    diff: DataSetDiff, reference: DataSet, candidate: DataSet, severity: Severity
) -> Iterator[Finding]:
    """Yield one finding for rows, one for questions that were altered and one for labels.

    Args:
        severity: of rows and questions; lower where the steps seen have the same prompts.
    """
    if len(diff.lost) or len(diff.added) or len(diff.repeated):
        yield _rows(diff, reference, candidate, severity)
    elif diff.num_moved:
        yield _moved(diff, reference, candidate, severity)
    if len(diff.altered):
        yield _altered(diff, reference, candidate, severity)
    if len(diff.other_labels) + len(diff.lost_labels) + len(diff.added_labels):
        yield _labels(diff, reference, candidate)


def _rows(diff: DataSetDiff, reference: DataSet, candidate: DataSet, severity: Severity) -> Finding:
    lost, added, repeated = len(diff.lost), len(diff.added), len(diff.repeated)
    title = Text(
        f"the data sets hold other rows: {lost} only in the reference, {added} only in the "
        f"candidate, {repeated} repeated otherwise ({diff.num_rows[0]} and {diff.num_rows[1]} "
        "rows)",
        f"两侧数据集的行不同：仅参考有 {lost} 行，仅被测有 {added} 行，重复次数不同 {repeated} 行"
        f"（共 {diff.num_rows[0]} 与 {diff.num_rows[1]} 行）",
    )
    if diff.edit is not None and not len(diff.altered):
        old, new = diff.edit.spans[0]
        title = Text(
            f"{title.en}; they differ by one and the same edit: {quoted(old)!r} became "
            f"{quoted(new)!r}",
            f"{title.zh}；它们的差别都是同一处修改：{quoted(old)!r} 变为 {quoted(new)!r}",
        )
    evidence = (
        *_quotes(reference, diff.lost, Side.REFERENCE),
        *_quotes(reference, diff.repeated, Side.REFERENCE),
        *_quotes(candidate, diff.added, Side.CANDIDATE),
    )
    return _finding("data.rows", severity, title, diff.num_rows, evidence)


def _moved(
    diff: DataSetDiff, reference: DataSet, candidate: DataSet, severity: Severity
) -> Finding:
    title = Text(
        f"the data sets hold the same rows in another order: {diff.num_moved} of "
        f"{diff.num_rows[0]} stand at another place",
        f"两侧数据集的行相同但顺序不同：{diff.num_rows[0]} 行中有 {diff.num_moved} 行的位置不同",
    )
    places = (
        Evidence(source=reference.source, side=Side.REFERENCE),
        Evidence(source=candidate.source, side=Side.CANDIDATE),
    )
    return _finding("data.rows_moved", severity, title, (0, diff.num_moved), places)


def _altered(
    diff: DataSetDiff, reference: DataSet, candidate: DataSet, severity: Severity
) -> Finding:
    count = len(diff.altered)
    title = Text(
        f"{count} questions are altered in the candidate's data set",
        f"被测数据集中有 {count} 道题目的文本被改动",
    )
    if diff.edit is not None:
        old, new = diff.edit.spans[0]
        title = Text(
            f"{title.en}, alike: {quoted(old)!r} became {quoted(new)!r}",
            f"{title.zh}，改动相同：{quoted(old)!r} 变为 {quoted(new)!r}",
        )
    evidence = (
        *_quotes(reference, diff.altered[:, 0], Side.REFERENCE),
        *_quotes(candidate, diff.altered[:, 1], Side.CANDIDATE),
    )
    return _finding("data.rows_altered", severity, title, (0, count), evidence)


def _labels(diff: DataSetDiff, reference: DataSet, candidate: DataSet) -> Finding:
    other, lost, added = diff.other_labels, diff.lost_labels, diff.added_labels
    title = Text(
        f"labels differ for {len(other)} questions, {len(lost)} have one only in the reference, "
        f"{len(added)} only in the candidate",
        f"{len(other)} 道题目的标准答案不同，{len(lost)} 道仅参考有标准答案，"
        f"{len(added)} 道仅被测有",
    )
    pairs = next(pairs for pairs in (other, lost, added) if len(pairs))
    evidence = (
        *_quotes(reference, pairs[:, 0], Side.REFERENCE, label=True),
        *_quotes(candidate, pairs[:, 1], Side.CANDIDATE, label=True),
    )
    return Finding(
        id="data.labels",
        rung=Rung.DATA,
        severity=Severity.ERROR,
        title=title,
        reference=len(lost),
        candidate=len(added),
        evidence=evidence,
        why=_WHY_LABELS,
        fix=_FIX_ROWS,
        mechanism=Mechanism(Rung.REWARD, Strength.SEMANTIC),
    )


def _finding(
    id: str,
    severity: Severity,
    title: Text,
    values: tuple[int, int],
    evidence: tuple[Evidence, ...],
) -> Finding:
    return Finding(
        id=id,
        rung=Rung.DATA,
        severity=severity,
        title=title,
        reference=values[0],
        candidate=values[1],
        evidence=evidence,
        why=_WHY_ROWS,
        fix=_FIX_ROWS,
        mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
    )


def _quotes(data: DataSet, rows: Int64, side: Side, *, label: bool = False) -> Iterator[Evidence]:
    for row in rows[:_SHOWN].tolist():
        text = _text(data, row)
        if label:
            text = f"{text} → {_label(data, row)}"
        yield Evidence(source=data.source, side=side, key=f"row {row}", text=quoted(text))


def _text(data: DataSet, row: int) -> str:
    if data.prompts is not None:
        return data.prompts[row]
    return str(data.token_ids[row][:24].tolist()) if data.token_ids is not None else ""


def _label(data: DataSet, row: int) -> str:
    if data.labels is not None:
        return str(data.labels[row])
    return str(data.label_ids[row][:24].tolist()) if data.label_ids is not None else "None"
