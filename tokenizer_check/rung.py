"""Tokenizer rung: do both runs end, pad and begin texts with the same tokens?

This version compares the special tokens that the model's and the tokenizer's files state.
Vocabulary, merges, chat template and encoding are not compared yet, and the summary says so.
"""

from __future__ import annotations

from align.core.figure import Cell, Column, Table
from align.core.finding import Finding, Severity
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from dumps.store.run_data import RunData
from tokenizer_check.comparison import Comparison, Pair, compare_tokens
from tokenizer_check.findings import findings
from tokenizer_check.special_tokens import Token, special_tokens

_NOT_COMPARED = Text(
    "Vocabulary, merges and chat template are not compared in this version.",
    "本版本不比较词表、merges 与 chat template。",
)


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Compare the special tokens that both runs' files state."""
    sides = special_tokens(reference), special_tokens(candidate)
    comparison = compare_tokens(*sides)
    if not comparison.num_compared:
        return _missing(comparison)
    found = findings(comparison)
    return RungResult(
        name=Rung.TOKENIZER,
        status=_status(found),
        summary=_summary(comparison, found),
        findings=found,
        tables=(_table(comparison),),
    )


def _status(found: tuple[Finding, ...]) -> RungStatus:
    severities = {finding.severity for finding in found}
    if Severity.ERROR in severities:
        return RungStatus.DIVERGED
    return RungStatus.UNDECIDED if Severity.WARNING in severities else RungStatus.ALIGNED


def _summary(comparison: Comparison, found: tuple[Finding, ...]) -> Text:
    weighty = next((f for f in found if f.severity is not Severity.INFO), None)
    count = comparison.num_compared
    said = (
        Text(
            f"{count} statements about special tokens compared: none differs in a way that "
            "matters.",
            f"比较了 {count} 处特殊 token 的声明：没有有影响的差异。",
        )
        if weighty is None
        else Text(f"{weighty.title.en}.", f"{weighty.title.zh}。")
    )
    return Text(f"{said.en} {_NOT_COMPARED.en}", f"{said.zh}{_NOT_COMPARED.zh}")


def _missing(comparison: Comparison) -> RungResult:
    stated = bool(comparison.reference.tokens), bool(comparison.candidate.tokens)
    side = {(True, False): "candidate", (False, True): "reference"}.get(stated, "both")
    summary = (
        Text(
            "Not compared: the two runs state their special tokens in different files.",
            "未比较：两次运行在不同的文件中声明特殊 token。",
        )
        if all(stated)
        else Text(
            "Not compared: no model or tokenizer file that states special tokens.",
            "未比较：没有声明特殊 token 的模型或分词器文件。",
        )
    )
    return RungResult(
        name=Rung.TOKENIZER,
        status=RungStatus.MISSING,
        summary=summary,
        findings=findings(comparison),
        missing=(missing_artifact(Rung.TOKENIZER, side),),
        tables=(_table(comparison),) if comparison.pairs else (),
    )


def _table(comparison: Comparison) -> Table:
    return Table(
        "tokenizer.special_tokens",
        Text("Special tokens, as each file states them", "各文件声明的特殊 token"),
        (
            Column("token", Text("token", "token")),
            Column("file", Text("file", "文件")),
            Column("same", Text("same", "是否相同")),
            Column("reference", Text("reference", "参考")),
            Column("candidate", Text("candidate", "被测")),
            Column("reference_place", Text("reference: found in", "参考：来源")),
            Column("candidate_place", Text("candidate: found in", "被测：来源")),
        ),
        tuple(_row(pair) for pair in comparison.pairs),
    )


def _row(pair: Pair) -> tuple[Cell, ...]:
    same = None if not pair.is_compared else "≠" if pair.differs else "="
    tokens = (pair.reference, pair.candidate)
    shown = [None if token is None else token.shown() for token in tokens]
    places = [None if token is None else _place(token) for token in tokens]
    return (pair.role, pair.file.value, same, *shown, *places)


def _place(token: Token) -> str:
    provenance = token.stated.provenance
    return f"{provenance.source}:{provenance.line}" if provenance.line else provenance.source
