"""Encode texts with both tokenizers where their content differs, and compare what cuts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from align.core.figure import Column, Table
from align.core.finding import Finding
from align.core.text import Text
from dumps.store.run_data import RunData
from tokenizer_check import encoding_findings
from tokenizer_check.content import Content
from tokenizer_check.encoding import EncodingComparison, compare_encodings
from tokenizer_check.loaded import LoadedPair
from tokenizer_check.pipeline import PartDiff, diff_parts
from tokenizer_check.sample_texts import Sample, samples


@dataclass(frozen=True, slots=True)
class TextComparison:
    """Findings and tables; ``compared`` says of each kind whether it was."""

    compared: Mapping[Text, bool]
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = field(default=())


_PARTS = Text(
    "normaliser, pre-tokenizer and model settings", "normalizer、pre-tokenizer 与 model 设置"
)


def compare_texts(
    runs: tuple[RunData, RunData],
    contents: tuple[Content, Content],
    loaded: LoadedPair,
    *,
    is_explained: bool,
) -> TextComparison:
    """Compare the sections of tokenizer.json, and encode texts where any content differs.

    Args:
        is_explained: an error about vocabulary, merges or added tokens says why ids differ.
    """
    ours, theirs = contents
    has_parts = ours.parts is not None and theirs.parts is not None
    if _is_same(ours, theirs):
        return TextComparison({_PARTS: has_parts})
    tokenizers = loaded.both()
    texts = samples(*runs) if tokenizers else ()
    parts = tuple(_parts(contents, loaded, texts))
    if tokenizers is None:
        reasons = _reasons(loaded)
        name = Text(f"encoded texts: {reasons.en}", f"文本的编码：{reasons.zh}")
        return TextComparison(
            {_PARTS: has_parts, name: False},
            tuple(encoding_findings.part(diff, contents) for diff in parts),
        )
    encoded = compare_encodings(tokenizers, contents, texts)
    found = [encoding_findings.part(diff, contents) for diff in parts]
    if encoded.diffs:
        explained = is_explained or any(diff.sample is not None for diff in parts)
        found.append(encoding_findings.encoding(encoded, contents, is_explained=explained))
    count = Text(f"{len(texts)} encoded texts", f"{len(texts)} 段文本的编码")
    return TextComparison({_PARTS: has_parts, count: True}, tuple(found), (_table(encoded),))


def _is_same(ours: Content, theirs: Content) -> bool:
    """Tell whether nothing that decides ids differs, or too little is there to tell."""
    if ours.vocabulary is None or theirs.vocabulary is None:
        return True
    return (
        ours.vocabulary.value == theirs.vocabulary.value
        and _value(ours.merges) == _value(theirs.merges)
        and _value(ours.parts) == _value(theirs.parts)
        and _value(ours.sentencepiece) == _value(theirs.sentencepiece)
        and _value(ours.tokenizer_class) == _value(theirs.tokenizer_class)
        and {k: f.value for k, f in ours.added.items()}
        == {k: f.value for k, f in theirs.added.items()}
    )


def _value(found: object) -> object:
    return getattr(found, "value", None)


def _parts(
    contents: tuple[Content, Content], loaded: LoadedPair, texts: Sequence[Sample]
) -> Iterator[PartDiff]:
    ours, theirs = contents
    if ours.parts is not None and theirs.parts is not None:
        yield from diff_parts(ours.parts.value, theirs.parts.value, loaded.both(), texts)


def _reasons(loaded: LoadedPair) -> Text:
    sides = (Text("reference", "参考"), Text("candidate", "被测"))
    said = [
        Text(f"{side.en}: {why.en}", f"{side.zh}：{why.zh}")
        for side, why in zip(sides, loaded.why_not(), strict=True)
        if why is not None
    ]
    return Text("; ".join(s.en for s in said), "；".join(s.zh for s in said))


def _table(encoded: EncodingComparison) -> Table:
    return Table(
        "tokenizer.encoding",
        Text(
            f"Texts with other ids ({len(encoded.diffs)} of {encoded.num_texts} encoded)",
            f"编码不同的文本（共编码 {encoded.num_texts} 段，不同 {len(encoded.diffs)} 段）",
        ),
        (
            Column("text", Text("text", "文本")),
            Column("num_reference", Text("tokens, reference", "token 数（参考）"), numeric=True),
            Column("num_candidate", Text("tokens, candidate", "token 数（被测）"), numeric=True),
            Column("at", Text("first at", "首个位置"), numeric=True),
            Column("reference", Text("reference", "参考")),
            Column("candidate", Text("candidate", "被测")),
            Column("responsible", Text("responsible", "原因")),
        ),
        tuple(
            (
                _name(diff.sample),
                *diff.num_tokens,
                diff.at,
                *(piece.shown() for piece in diff.pieces),
                diff.responsible,
            )
            for diff in encoded.diffs
        ),
    )


def _name(sample: Sample) -> Text:
    if not sample.num_replaced:
        return sample.name
    return Text(
        f"{sample.name.en} ({sample.num_replaced} lone surrogates read as U+FFFD)",
        f"{sample.name.zh}（{sample.num_replaced} 个孤立代理项读作 U+FFFD）",
    )
