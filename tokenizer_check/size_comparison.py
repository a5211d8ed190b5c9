"""Set the sizes of both tokenizers and models against each other."""

from __future__ import annotations

from collections.abc import Iterator

from align.core.figure import Column, Table
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from tokenizer_check.sizes import Sizes

_NAMES = {
    "num_tokens": Text("len(tokenizer)", "len(tokenizer)"),
    "num_ids": Text("largest id + 1", "最大 id + 1"),
    "vocab_size": Text("vocab_size of config.json", "config.json 的 vocab_size"),
    "padded": Text("padded vocabulary of the training configuration", "训练配置的补齐词表"),
    "rows": Text("rows of the embedding", "embedding 行数"),
    "largest_seen": Text("largest id in recorded rows", "记录中的最大 id"),
}


def compare_sizes(reference: Sizes, candidate: Sizes) -> Iterator[Finding]:
    """Yield a finding where one side has ids without a row, or the models other sizes."""
    if bool(reference.is_mismatch) != bool(candidate.is_mismatch):
        yield _mismatch(reference, candidate)
    elif reference.model_rows != candidate.model_rows and None not in (
        reference.is_mismatch,
        candidate.is_mismatch,
    ):
        yield _padding(reference, candidate)


def size_table(reference: Sizes, candidate: Sizes) -> Table | None:
    """Return the sizes of both sides with a verdict; None where no file states one."""
    pairs = [
        (name, getattr(reference, key), getattr(candidate, key)) for key, name in _NAMES.items()
    ]
    rows = [row for row in pairs if row[1:] != (None, None)]
    if not rows:
        return None
    verdicts = (_verdict(reference), _verdict(candidate))
    return Table(
        "tokenizer.sizes",
        Text("Sizes of tokenizer and model", "分词器与模型的大小"),
        (
            Column("size", Text("size", "大小")),
            Column("reference", Text("reference", "参考"), numeric=True),
            Column("candidate", Text("candidate", "被测"), numeric=True),
        ),
        (*rows, (Text("verdict", "结论"), *verdicts)),
    )


def _verdict(sizes: Sizes) -> Text | None:
    if sizes.is_mismatch is None:
        return None
    if sizes.is_mismatch:
        return Text("mismatch", "不匹配")
    unused = sizes.num_unused
    if not unused:
        return Text("one row an id", "每个 id 一行")
    return Text(f"padding only ({unused} rows)", f"仅为补齐（{unused} 行）")


def _mismatch(reference: Sizes, candidate: Sizes) -> Finding:
    wrong, name = (
        (reference, Text("reference", "参考"))
        if reference.is_mismatch
        else (candidate, Text("candidate", "被测"))
    )
    return Finding(
        id="tokenizer.vocab_size",
        rung=Rung.TOKENIZER,
        severity=Severity.ERROR,
        title=Text(
            f"sizes of the {name.en} do not fit: {_numbers(wrong).en}",
            f"{name.zh}的大小不匹配：{_numbers(wrong).zh}",
        ),
        reference=_numbers(reference).en,
        candidate=_numbers(candidate).en,
        evidence=_evidence(reference, candidate),
        why=Text(
            "Ids beyond the last row of the embedding fail or, on some devices, read other memory; "
            "a tokenizer with added tokens needs a model that was resized for them.",
            "超出 embedding 最后一行的 id 会报错，在某些设备上会读到其他内存；"
            "新增 token 的 tokenizer 需要相应扩展过的模型。",
        ),
        fix=Text(
            "Load tokenizer and model from one folder, or resize the embedding to the tokenizer.",
            "从同一目录加载 tokenizer 与模型，或把 embedding 扩展到 tokenizer 的大小。",
        ),
        mechanism=Mechanism(Rung.FORWARD, Strength.SEMANTIC),
    )


def _padding(reference: Sizes, candidate: Sizes) -> Finding:
    ours, theirs = reference.model_rows, candidate.model_rows
    return Finding(
        id="tokenizer.vocab_size",
        rung=Rung.TOKENIZER,
        severity=Severity.INFO,
        title=Text(
            f"the models have {ours} and {theirs} rows for their tokens",
            f"模型的 token 行数：参考为 {ours}，被测为 {theirs}",
        ),
        reference=ours,
        candidate=theirs,
        evidence=_evidence(reference, candidate),
        why=Text(
            "Every id has a row on both sides: the rest is padding. A model that samples from "
            "padding rows writes ids that no text has.",
            "两侧每个 id 都有对应的行：其余仅为补齐。若模型采样到补齐的行，会产生没有文本的 id。",
        ),
        fix=Text("Nothing to change for one and the same model.", "同一模型则无需修改。"),
    )


def _numbers(sizes: Sizes) -> Text:
    shown = [
        (name, value)
        for key, name in _NAMES.items()
        if key != "num_tokens" and (value := getattr(sizes, key)) is not None
    ]
    return Text(
        ", ".join(f"{name.en} {value}" for name, value in shown),
        "，".join(f"{name.zh} {value}" for name, value in shown),
    )


def _evidence(reference: Sizes, candidate: Sizes) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            source=sizes.rows_source or "tokenizer and config.json",
            side=side,
            key="vocab_size",
            values=(sizes.num_ids, sizes.vocab_size, sizes.padded, sizes.rows),
        )
        for side, sizes in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    )
