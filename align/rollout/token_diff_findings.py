"""Differences between paired rows as findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.rollout.token_defects import Defect
from align.rollout.token_diff import Difference, PairDiff
from align.rollout.token_diff_texts import WORDING
from align.rollout.token_row import TokenRow
from align.rollout.token_spans import Decode, Span, turn_of
from align.rollout.token_texts import WORDING as OF_DEFECTS
from align.rollout.token_texts import Wording

_QUOTED = 3
_IDS_SHOWN = 8
_HARMLESS = frozenset({Difference.POSITIONS_OFFSET})
_SUSPECT = frozenset(
    {Difference.NEARLY_IDENTICAL, Difference.LABELS_SHIFTED, Difference.POSITIONS, Difference.MASK}
)
_ALIASES: Mapping[Difference, tuple[Defect, ...]] = {
    Difference.PROMPT: (Defect.PACKED_BOUNDARIES,),
    Difference.MASK: (Defect.MASK_SHIFTED, Defect.EOS_MISSING),
    Difference.POSITIONS: (
        Defect.POSITIONS_ROUNDED,
        Defect.POSITIONS_DUPLICATED,
        Defect.POSITIONS_LEFT_PADDING,
    ),
    Difference.LABELS: (Defect.LABELS_DIFFER, Defect.EOS_MISSING),
    Difference.EOS_MISSING: (Defect.EOS_MISSING, Defect.EOS_FAKE),
    Difference.EOS_FAKE: (Defect.EOS_FAKE, Defect.EOS_MISSING),
    Difference.RETOKENISED: (Defect.RETOKENISED,),
    Difference.NEARLY_IDENTICAL: (
        Defect.RESPONSE_DIFFERS,
        Defect.RETOKENISED,
        Defect.PACKED_BOUNDARIES,
    ),
}
"""Defects of one side that explain a difference between the two; they are named in its place."""


@dataclass(frozen=True, slots=True)
class Decoders:
    """Ids to text of each side, special tokens included; None where the tokenizer is not known."""

    reference: Decode | None
    candidate: Decode | None


def findings_of(
    diffs: Sequence[PairDiff], num_pairs: int, defects: frozenset[Defect], decoders: Decoders
) -> list[Finding]:
    """Make a finding of each difference that no defect of one side explains."""
    found = []
    for difference in Difference:
        several = [diff for diff in diffs if diff.difference is difference]
        if several and not defects & set(_ALIASES.get(difference, ())):
            found.append(_finding(difference, several, num_pairs, decoders))
    return sorted(found, key=lambda finding: finding.severity.rank)


def _finding(
    difference: Difference, diffs: Sequence[PairDiff], num_pairs: int, decoders: Decoders
) -> Finding:
    words = _wording(difference)
    severity = Severity.ERROR
    if difference in _HARMLESS:
        severity = Severity.INFO
    elif difference in _SUSPECT:
        severity = Severity.WARNING
    counts = Counter(diff.at_fault for diff in diffs)
    rows = Text(f"{len(diffs)} of {num_pairs} rows", f"{num_pairs} 行中的 {len(diffs)} 行")
    detail = _detail(difference, diffs, decoders)
    acts = severity is Severity.ERROR and difference is not Difference.PROMPT
    return Finding(
        id=f"tokens.{difference.value}",
        rung=Rung.TOKENS,
        severity=severity,
        title=Text(
            f"{words.title.en}{_whose(counts).en}: {rows.en}{detail.en}",
            f"{words.title.zh}{_whose(counts).zh}：{rows.zh}{detail.zh}",
        ),
        reference=counts.get("reference", 0) or _size(diffs[0], Side.REFERENCE),
        candidate=counts.get("candidate", 0) or _size(diffs[0], Side.CANDIDATE),
        evidence=tuple(e for diff in diffs[:_QUOTED] for e in _evidence(diff, decoders)),
        why=words.why,
        fix=words.fix,
        mechanism=Mechanism(Rung.TOKENS, Strength.SEMANTIC) if acts else None,
    )


def _wording(difference: Difference) -> Wording:
    if difference in WORDING:
        return WORDING[difference]
    words = OF_DEFECTS[Defect(difference.value)]
    titles = {
        Difference.EOS_MISSING: Text(
            "a response lacks the eos that it has on the other side", "回复缺少另一侧所有的 eos"
        ),
        Difference.EOS_FAKE: Text(
            "a response cut at the length limit has an eos that it lacks on the other side",
            "被长度上限截断的回复带有另一侧没有的 eos",
        ),
        Difference.RETOKENISED: Text(
            "the two sides have other ids for the same response text", "两侧同一回复文本的 id 不同"
        ),
        Difference.LABELS: Text(
            "labels stand at other tokens on the two sides", "两侧带 labels 的 token 不同"
        ),
    }
    return replace(words, title=titles.get(difference, words.title))


def _whose(counts: Mapping[str | None, int]) -> Text:
    sides = [side for side in ("reference", "candidate") if counts.get(side)]
    if len(sides) != 1:
        return Text("", "")
    return Text(f", in the {sides[0]}", "（参考）" if sides[0] == "reference" else "（被测）")


def _size(diff: PairDiff, side: Side) -> int:
    row = diff.pair.reference if side is Side.REFERENCE else diff.pair.candidate
    return len(row.prompt) if diff.difference is Difference.PROMPT else len(row.response)


def _detail(difference: Difference, diffs: Sequence[PairDiff], decoders: Decoders) -> Text:
    """Say for prompts and near rows what the most frequent edit is."""
    if difference is Difference.NEARLY_IDENTICAL:
        fewest = min(sum(span.num_tokens for span in diff.spans) for diff in diffs)
        return Text(
            f", the nearest but for {fewest} tokens", f"，最接近的一行只差 {fewest} 个 token"
        )
    if difference is not Difference.PROMPT:
        return Text("", "")
    edits = Counter(span.edit for diff in diffs for span in diff.spans)
    edit, count = edits.most_common(1)[0]
    diff, span = next((d, s) for d in diffs for s in d.spans if s.edit == edit)
    what, turn = _edit(span), _turn(diff, span, decoders)
    one = count == len(diffs)
    where = Text(f" in the {turn} turn", f"（{turn} 部分）") if turn else Text("", "")
    return Text(
        f"; {what.en}{where.en}, from token {span.start} on{', in each of them' if one else ''}",
        f"；{what.zh}{where.zh}，从第 {span.start} 个 token 起{'，每行都是' if one else ''}",
    )


def _edit(span: Span) -> Text:
    ours, theirs = len(span.reference), len(span.candidate)
    if not theirs:
        return Text(f"the candidate lacks {ours} tokens", f"被测缺少 {ours} 个 token")
    if not ours:
        return Text(f"the candidate has {theirs} more tokens", f"被测多出 {theirs} 个 token")
    return Text(
        f"{ours} tokens are {theirs} others in the candidate",
        f"{ours} 个 token 在被测中换成了另外 {theirs} 个",
    )


def _turn(diff: PairDiff, span: Span, decoders: Decoders) -> str | None:
    lacks = not span.candidate
    decode = (decoders.reference if lacks else decoders.candidate) or decoders.reference
    if decode is None:
        return None
    return turn_of(span, diff.pair.reference.prompt, diff.pair.candidate.prompt, decode)


def _evidence(diff: PairDiff, decoders: Decoders) -> tuple[Evidence, ...]:
    sides = (
        (diff.pair.reference, Side.REFERENCE, decoders.reference),
        (diff.pair.candidate, Side.CANDIDATE, decoders.candidate),
    )
    return tuple(_quoted(diff, row, side, decode) for row, side, decode in sides)


def _quoted(diff: PairDiff, row: TokenRow, side: Side, decode: Decode | None) -> Evidence:
    part, text = "tokens", ""
    if diff.spans:
        span = diff.spans[0]
        of_prompt = diff.difference is Difference.PROMPT
        part = "prompt" if of_prompt else "response"
        start = span.start if side is Side.REFERENCE else span.other_start
        ids = span.reference if side is Side.REFERENCE else span.candidate
        shown = f"{list(ids[:_IDS_SHOWN])}{' …' if len(ids) > _IDS_SHOWN else ''}"
        spelled = f" {decode(ids)!r}" if decode is not None and ids else ""
        text = f"from token {start}: {shown}{spelled}" if ids else f"nothing at token {start}"
    elif diff.token is not None:
        text = _beside(diff, row)
    key = f"{row.name}, {part}"
    return Evidence(row.source, side, line=row.line, key=key, text=f"{key}: {text}"[:200])


def _beside(diff: PairDiff, row: TokenRow) -> str:
    values = {
        Difference.MASK: row.mask,
        Difference.POSITIONS: row.positions,
        Difference.POSITIONS_OFFSET: row.positions,
    }.get(diff.difference, row.labels)
    if values is None or diff.token is None:
        return ""
    kept = values[row.columns]
    whole = diff.pair.reference.tokens == diff.pair.candidate.tokens
    if diff.difference is Difference.MASK or (values is row.positions and not whole):
        kept = kept[-(len(row.response) or len(row.tokens)) :]
    around = kept[max(0, diff.token - 2) : diff.token + 6].tolist()
    return f"around token {diff.token}: {around}"
