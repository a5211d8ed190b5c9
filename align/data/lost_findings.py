"""Say which prompts a run never sees: rows it lost, or rows a length filter drops."""

from __future__ import annotations

from dataclasses import replace

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.data.findings import ORDER_WHY, quoted, with_cause
from align.data.lost_rows import LostRows
from align.data.order_diff import OrderCause
from dumps.store.rollout_index import RolloutIndex, RowText

_QUOTED = 2
_MOST_READ = 8192  # rows of a dump read again for their prompt's number of tokens
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def lost_findings(
    lost: tuple[LostRows, ...], indices: tuple[RolloutIndex, RolloutIndex], order: Finding
) -> tuple[Finding, ...]:
    """Put the cause before the order that follows from it.

    Args:
        lost: at least one side's.
        indices: of reference and candidate.
        order: says that the prompts of the steps differ.

    Returns:
        The order alone, with its cause, where the prompts lacking are just the longest ones.
    """
    causes = [_dropped_by_length(each, _other(each.side, indices)) for each in lost]
    lengths = [cause for cause in causes if cause is not None]
    if len(lengths) == len(lost):
        return (with_cause(order, lengths[0]),)
    named = [
        _rows_lost(each, _other(each.side, indices))
        for each, cause in zip(lost, causes, strict=True)
        if cause is None
    ]
    why = Text(
        f"{ORDER_WHY.en} It follows from the rows lost: a sampler permutes row numbers, so that "
        "with fewer rows every step has others.",
        f"{ORDER_WHY.zh}这是丢行的后果：采样器打乱的是行号，行数变少后每一步的数据都会改变。",
    )
    return (*named, replace(order, why=why))


def _other(side: Side, indices: tuple[RolloutIndex, RolloutIndex]) -> RolloutIndex:
    return indices[0] if side is Side.CANDIDATE else indices[1]


def _dropped_by_length(lost: LostRows, index: RolloutIndex) -> OrderCause | None:
    """Recognise a length filter: it drops all prompts from some length on, and no shorter one."""
    if len(lost.rows) + len(lost.seen) > _MOST_READ:
        return None
    lacking = _lengths(index.texts(lost.rows))
    seen = _lengths(index.texts(lost.seen))
    if lacking is None or seen is None or min(lacking) <= max(seen):
        return None
    count, shortest = len(lacking), min(lacking)
    return OrderCause(
        Text(
            f"the {lost.side.value} never sees the {count} prompts of {shortest} or more tokens, "
            "and all shorter ones: its length filter drops them",
            f"{_ZH[lost.side]}从未出现长度不少于 {shortest} 个 token 的 {count} 条 prompt，"
            "更短的则全部出现：它们被长度过滤丢弃",
        ),
        (
            Evidence(
                source=index.sources[0],
                side=Side.CANDIDATE if lost.side is Side.REFERENCE else Side.REFERENCE,
                key="tokens of the longest prompt both saw, of the shortest one lacking",
                values=(max(seen), shortest),
            ),
        ),
    )


def _lengths(rows: list[RowText]) -> list[int] | None:
    lengths = [row.num_prompt_tokens for row in rows if row.num_prompt_tokens is not None]
    return lengths if len(lengths) == len(rows) else None


def _rows_lost(lost: LostRows, index: RolloutIndex) -> Finding:
    count, num_kept = len(lost.rows), lost.num_prompts - len(lost.rows)
    has_more = Side.REFERENCE if lost.side is Side.CANDIDATE else Side.CANDIDATE
    counts = {lost.side: num_kept, has_more: lost.num_prompts}
    return Finding(
        id="data.rows_lost",
        rung=Rung.DATA,
        severity=Severity.ERROR,
        title=Text(
            f"{count} of {lost.num_prompts} prompts never appear in the {lost.side.value}, though "
            f"it drew {lost.num_draws}: its data set lost these rows",
            f"{lost.num_prompts} 条 prompt 中有 {count} 条从未出现在{_ZH[lost.side]}中，"
            f"而它共抽取了 {lost.num_draws} 条：其数据集丢失了这些行",
        ),
        reference=counts[Side.REFERENCE],
        candidate=counts[Side.CANDIDATE],
        evidence=tuple(
            Evidence(
                source=row.source,
                side=has_more,
                line=row.line,
                key="prompt",
                text=quoted(row.prompt),
            )
            for row in index.texts(lost.rows[:_QUOTED])
        ),
        why=Text(
            "A sampler permutes row numbers: with fewer rows every step has other ones, and the "
            "model never learns from those lost. So many draws leave so many prompts out by "
            "chance in fewer than one of a million runs.",
            "采样器打乱的是行号：行数变少后每一步的数据都会改变，丢失的题目也永远不会被训练。"
            "在这样的抽取次数下，偶然遗漏这么多 prompt 的概率不到百万分之一。",
        ),
        fix=Text(
            "Count the rows of both data files (`align data diff` with the files in the run "
            "folders names each row lost), convert the data again, and compare the length "
            "filters.",
            "统计两侧数据文件的行数（把数据文件放入运行目录，`align data diff` 会列出丢失的行），"
            "重新转换数据，并对比长度过滤设置。",
        ),
        mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
    )
