"""Tokenizer rung: do both runs turn the same conversation into the same ids?

Compared are the special tokens that the model's and the tokenizer's files state, where responses
would end in either framework, the sizes, and the parsed content: chat template as it renders,
vocabulary, merges, added tokens, normaliser, pre-tokenizer, and texts as they are encoded.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.core.figure import Cell, Column, Table
from align.core.finding import Finding, Severity, Side
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from dumps.store.run_data import RunData
from tokenizer_check.comparison import Comparison, Pair, compare_tokens
from tokenizer_check.content import read_content
from tokenizer_check.content_comparison import ContentComparison, compare_content
from tokenizer_check.end_comparison import EndComparison, ending
from tokenizer_check.file_table import file_table, unread_files
from tokenizer_check.findings import findings
from tokenizer_check.size_comparison import compare_sizes, size_table
from tokenizer_check.sizes import sizes
from tokenizer_check.special_tokens import Token, special_tokens
from tokenizer_check.template_comparison import prompt_source


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Compare what both runs' model and tokenizer files state."""
    tokens = special_tokens(reference), special_tokens(candidate)
    contents = read_content(reference), read_content(candidate)
    sources = (
        prompt_source(reference, contents[0]),
        prompt_source(candidate, contents[1]),
    )
    comparison = compare_tokens(*tokens)
    ends = EndComparison(
        ending(Side.REFERENCE, reference, contents[0], tokens[0], sources[0]),
        ending(Side.CANDIDATE, candidate, contents[1], tokens[1], sources[1]),
    )
    size = (
        sizes(reference, contents[0], ends.reference.recorded.largest_id),
        sizes(candidate, contents[1], ends.candidate.recorded.largest_id),
    )
    content = compare_content(reference, candidate, contents, tokens, sources)
    found = (
        *findings(comparison, ends.consequences),
        *(() if comparison.decisive("eos") else ends.findings()),
        *compare_sizes(*size),
        *content.findings,
        *unread_files(reference, candidate),
    )
    weighty = any(finding.severity is not Severity.INFO for finding in found)
    tables = (
        file_table(reference, candidate),
        _table(comparison, ends),
        ends.table(),
        size_table(*size),
        *content.tables,
    )
    shown = tuple(table for table in tables if table is not None and table.rows)
    if not (comparison.num_compared or content.compared or weighty):
        return _missing(comparison, found, shown)
    return RungResult(
        name=Rung.TOKENIZER,
        status=_status(found),
        summary=_summary(comparison, content, found),
        findings=tuple(sorted(found, key=lambda finding: finding.severity.rank)),
        tables=shown,
    )


def _status(found: tuple[Finding, ...]) -> RungStatus:
    severities = {finding.severity for finding in found}
    if Severity.ERROR in severities:
        return RungStatus.DIVERGED
    return RungStatus.UNDECIDED if Severity.WARNING in severities else RungStatus.ALIGNED


def _summary(
    comparison: Comparison, content: ContentComparison, found: tuple[Finding, ...]
) -> Text:
    weighty = [finding for finding in found if finding.severity is not Severity.INFO]
    worst = min(weighty, key=lambda finding: finding.severity.rank, default=None)
    count = comparison.num_compared
    compared = _listed(content.compared)
    said = (
        Text(
            f"{count} statements about special tokens{compared.en} compared: none differs in a "
            "way that matters.",
            f"比较了 {count} 处特殊 token 的声明{compared.zh}：没有有影响的差异。",
        )
        if worst is None
        else Text(f"{worst.title.en}.", f"{worst.title.zh}。")
    )
    if not content.not_compared:
        return said
    names = _listed(content.not_compared)
    return Text(
        f"{said.en} Not compared, as not in the files of both runs: {names.en.removeprefix(', ')}.",
        f"{said.zh}未比较（并非两侧都有）：{names.zh.removeprefix('、')}。",
    )


def _listed(names: tuple[Text, ...]) -> Text:
    return Text("".join(f", {n.en}" for n in names), "".join(f"、{n.zh}" for n in names))


def _missing(
    comparison: Comparison, found: tuple[Finding, ...], tables: tuple[Table, ...]
) -> RungResult:
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
        findings=found,
        missing=(missing_artifact(Rung.TOKENIZER, side),),
        tables=tables,
    )


def _table(comparison: Comparison, ends: EndComparison) -> Table:
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
        (*(_row(pair) for pair in comparison.pairs), *_turn_ends(ends)),
    )


def _turn_ends(ends: EndComparison) -> Iterator[tuple[Cell, ...]]:
    """Yield the token that really ends a turn, as one more source beside the files."""
    found = [side.turn_end for side in ends.sides]
    shown = [None if end is None else end.shown() for end in found]
    places = [None if end is None else end.template.place for end in found]
    if shown != [None, None]:
        same = None if None in shown else "=" if shown[0] == shown[1] else "≠"
        yield ("end of a turn", "chat template, rendered", same, *shown, *places)


def _row(pair: Pair) -> tuple[Cell, ...]:
    same = None if not pair.is_compared else "≠" if pair.differs else "="
    tokens = (pair.reference, pair.candidate)
    shown = [None if token is None else token.shown() for token in tokens]
    places = [None if token is None else _place(token) for token in tokens]
    return (pair.role, pair.file.value, same, *shown, *places)


def _place(token: Token) -> str:
    provenance = token.stated.provenance
    return f"{provenance.source}:{provenance.line}" if provenance.line else provenance.source
