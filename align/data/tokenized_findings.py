"""Say how rows differ once they are rendered, filtered by length and looked up in a vocabulary."""

from __future__ import annotations

from align.core.data_set import DataSet
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.data.findings import TEMPLATE_FIX, TEMPLATE_WHY, quoted
from align.data.run_order import RunOrder
from align.data.tokenized_rows import FilterDiff, RenderedDiff
from align.data.torch_generator import Int64

_SHOWN = 3
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def rendered_otherwise(diff: RenderedDiff, sources: tuple[str, str]) -> Finding:
    """Say in which span the same rows are rendered otherwise."""
    old, new = max(diff.edit, key=lambda span: len(span[0]) + len(span[1]))
    how = Text("alike", "改动相同") if diff.constant else Text("the first", "首处")
    return Finding(
        id="data.prompt_template",
        rung=Rung.DATA,
        severity=Severity.ERROR,
        title=Text(
            f"{diff.num_differing} of {diff.num_compared} questions are rendered otherwise, "
            f"{how.en}: {quoted(old)!r} in the reference, {quoted(new)!r} in the candidate",
            f"{diff.num_compared} 道题目中有 {diff.num_differing} 道渲染结果不同（{how.zh}）："
            f"参考为 {quoted(old)!r}，被测为 {quoted(new)!r}",
        ),
        reference=quoted(old),
        candidate=quoted(new),
        evidence=tuple(
            Evidence(source=source, side=side, key=f"row {row}, rendered", text=quoted(text))
            for source, side, row, text in zip(
                sources, (Side.REFERENCE, Side.CANDIDATE), diff.row, diff.texts, strict=True
            )
        ),
        why=TEMPLATE_WHY,
        fix=TEMPLATE_FIX,
        mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
    )


def filters_differ(diff: FilterDiff, orders: tuple[RunOrder, RunOrder]) -> Finding:
    """Say which rows only one side's length filter keeps."""
    ours, theirs = len(diff.only_reference), len(diff.only_candidate)
    rules = [
        f"{o.settings.length_filter}, limit {o.settings.max_prompt_length}"
        if o.settings.filters_length
        else "no length filter"
        for o in orders
    ]
    return Finding(
        id="data.length_filter",
        rung=Rung.DATA,
        severity=Severity.ERROR,
        title=Text(
            f"the length filters keep other rows: {ours} of the common ones only in the "
            f"reference ({rules[0]}), {theirs} only in the candidate ({rules[1]})",
            f"长度过滤保留的行不同：共同的行中有 {ours} 行仅参考保留（{rules[0]}），"
            f"{theirs} 行仅被测保留（{rules[1]}）",
        ),
        reference=diff.num_kept[0],
        candidate=diff.num_kept[1],
        evidence=(
            *_lengths(orders[0], diff.only_reference[:, 0], Side.REFERENCE),
            *_lengths(orders[1], diff.only_reference[:, 1], Side.CANDIDATE),
            *_lengths(orders[0], diff.only_candidate[:, 0], Side.REFERENCE),
            *_lengths(orders[1], diff.only_candidate[:, 1], Side.CANDIDATE),
        ),
        why=Text(
            "The sampler permutes the rows that are left: one row more or less gives every step "
            "other rows. verl keeps prompts up to the limit and only if it is told to filter; "
            "MindSpeed-RL always drops those of exactly the limit too.",
            "采样器打乱的是过滤后留下的行：多一行或少一行，每一步的数据都会改变。"
            "verl 仅在开启过滤时生效，且保留长度等于上限的 prompt；"
            "MindSpeed-RL 总是过滤，并丢弃长度恰好等于上限的 prompt。",
        ),
        fix=Text(
            "Filter the data once, beforehand, to prompts below the limit of both sides, and train "
            "both runs on that file.",
            "先按低于两侧上限的长度过滤一次数据，两侧都使用过滤后的文件。",
        ),
        mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
    )


def ids_beyond(data: DataSet, rows: Int64, size: int, side: Side) -> Finding:
    """Say that a data set holds ids the model has no embedding for."""
    count = len(rows)
    assert data.token_ids is not None
    return Finding(
        id="data.ids_beyond_vocabulary",
        rung=Rung.DATA,
        severity=Severity.ERROR,
        title=Text(
            f"{count} of {len(data)} rows of the {side.value}'s data set hold token ids outside "
            f"its vocabulary of {size}",
            f"{_ZH[side]}数据集的 {len(data)} 行中有 {count} 行含词表（{size}）之外的 token id",
        ),
        reference=count if side is Side.REFERENCE else None,
        candidate=count if side is Side.CANDIDATE else None,
        evidence=tuple(
            Evidence(
                source=data.source,
                side=side,
                key=f"row {row}: smallest and largest id",
                values=(int(data.token_ids[row].min()), int(data.token_ids[row].max())),
            )
            for row in rows[:_SHOWN].tolist()
        ),
        why=Text(
            "The rows were tokenised for another model, or are read as another type of number: "
            "the model cannot see the prompts that were meant.",
            "这些行是用另一个模型的分词器处理的，或以错误的数值类型读取：模型看不到原本的 prompt。",
        ),
        fix=Text(
            "Run preprocess_data.py again with this model's tokenizer.",
            "用该模型的分词器重新运行 preprocess_data.py。",
        ),
        mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
    )


def _lengths(order: RunOrder, rows: Int64, side: Side) -> tuple[Evidence, ...]:
    if order.lengths is None or order.data_set is None:
        return ()
    return tuple(
        Evidence(
            source=order.data_set.source,
            side=side,
            key=f"tokens of row {row}",
            values=(order.lengths[row],),
        )
        for row in rows[:_SHOWN].tolist()
    )
