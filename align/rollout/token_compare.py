"""The rows of two runs compared with each other, besides each side with itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from align.core.errors import RunError
from align.core.figure import Table
from align.core.finding import Finding, Severity, Side
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.rollout.retokenise import round_trip
from align.rollout.retokenise_findings import drift_findings
from align.rollout.token_defects import Defect
from align.rollout.token_diff import PairDiff, pair_diffs, without_chance
from align.rollout.token_diff_findings import Decoders, findings_of
from align.rollout.token_ends import Ends, ends_finding
from align.rollout.token_pairs import How, Paired, RowPair, pair_rows
from align.rollout.token_row import TokenRow, likely_stops
from align.rollout.token_rows import TokenRows, token_rows
from align.rollout.token_side import rows_by_step
from align.rollout.token_table import pair_table
from align.rollout.token_tokenizer import decoder, special_ids, tokenizer_of
from align.rollout.tokens_rung import compare_rows
from dumps.store.run_data import RunData

_SIDES = (Side.REFERENCE, Side.CANDIDATE)
_OF_EOS = frozenset({Defect.EOS_MISSING, Defect.EOS_FAKE})


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the user wants to see: a step, and a row of the reference; None for the first."""

    step: int | None = None
    row: int | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """The paired rows of one step."""

    step: int | None
    paired: Paired
    diffs: tuple[PairDiff, ...]

    def rows(self, side: Side) -> list[TokenRow]:
        """Return every row of one side, paired or not."""
        if side is Side.REFERENCE:
            return [*(pair.reference for pair in self.paired.pairs), *self.paired.only_reference]
        return [*(pair.candidate for pair in self.paired.pairs), *self.paired.only_candidate]


def compare_tokens(
    reference: RunData, candidate: RunData, chosen: Chosen, tokenizer: Any | None = None
) -> RungResult:
    """Compare the token ids of two runs: each side by itself, then row by row.

    Args:
        tokenizer: of both sides, where they have none of their own.

    Raises:
        RunError: The step or the row that is asked for is not there.
    """
    runs = dict(zip(_SIDES, (reference, candidate), strict=True))
    tokenizers = {side: tokenizer_of(data) or tokenizer for side, data in runs.items()}
    tokens = {side: token_rows(data, engine_alone=True) for side, data in runs.items()}
    alone = compare_rows(tokens, tokenizers)
    by_step = [rows_by_step(tokens[side]) for side in _SIDES]
    if not all(by_step):
        return _nothing(alone, tokens)
    steps = _compared(by_step, chosen, tokenizers)
    if not any(step.paired.pairs for step in steps):
        return _unpaired(alone, steps, by_step)
    own = frozenset(
        defect for defect in Defect if any(f.id == f"tokens.{defect.value}" for f in alone.findings)
    )
    between = _between(steps, own, tokenizers)
    named = {finding.id for finding in between}
    drift = _drift(steps, tokenizers)
    told = own & _OF_EOS or named & {f"tokens.{defect.value}" for defect in _OF_EOS}
    ends = [] if told else _ends(steps, tokenizers)
    found = (*(f for f in alone.findings if f.id not in named), *between, *ends, *drift)
    found = tuple(sorted(found, key=lambda finding: finding.severity.rank))
    return RungResult(
        name=Rung.TOKENS,
        status=_status(found, comparable=True, whole=_is_whole(steps)),
        summary=_summary(steps, alone),
        findings=found,
        tables=_tables(steps, chosen, tokenizers),
    )


def _compared(
    by_step: Sequence[Mapping[int | None, Sequence[TokenRow]]],
    chosen: Chosen,
    tokenizers: Mapping[Side, Any | None],
) -> list[_Step]:
    """Compare the steps both have; a single step of each side is compared whatever its number."""
    ours, theirs = by_step
    steps = [(step, step) for step in ours if step in theirs]
    if not steps and len(ours) == len(theirs) == 1:
        steps = [(next(iter(ours)), next(iter(theirs)))]
    if chosen.step is not None:
        steps = [pair for pair in steps if chosen.step in pair]
        if not steps:
            raise RunError(
                where="--step",
                problem=f"is {chosen.step}, and the reference has {_listed(ours)}, the candidate "
                f"{_listed(theirs)}",
                fix="give a step that both sides have",
            )
    steps.sort(key=lambda pair: -1 if pair[0] is None else pair[0])
    made = [_one_step(ours[a], theirs[b], a, tokenizers) for a, b in steps]
    diffs = [diff for step in made for diff in step.diffs]
    samples = sum(pair.how is How.PROMPT for step in made for pair in step.paired.pairs)
    kept = {id(diff) for diff in without_chance(diffs, samples)}
    return [replace(s, diffs=tuple(d for d in s.diffs if id(d) in kept)) for s in made]


def _listed(steps: Mapping[int | None, object]) -> str:
    known = sorted(step for step in steps if step is not None)
    if not known:
        return "rows without a step"
    return f"steps {', '.join(map(str, known[:8]))}{' …' if len(known) > 8 else ''}"


def _one_step(
    ours: Sequence[TokenRow],
    theirs: Sequence[TokenRow],
    step: int | None,
    tokenizers: Mapping[Side, Any | None],
) -> _Step:
    text = _decode(tokenizers, special=False)
    stops = _stops((ours, theirs), tokenizers)
    paired = pair_rows(ours, theirs, text)
    return _Step(step, paired, tuple(pair_diffs(paired.pairs, stops, text)))


def _stops(
    rows: Sequence[Sequence[TokenRow]], tokenizers: Mapping[Side, Any | None]
) -> frozenset[int]:
    """Return at which ids either side's responses end."""
    ends = (
        likely_stops(of_side, special_ids(tokenizers[side]))
        for side, of_side in zip(_SIDES, rows, strict=True)
    )
    return frozenset().union(*ends)


def _decode(tokenizers: Mapping[Side, Any | None], *, special: bool) -> Any | None:
    """Return a decoder for rows of both sides: the reference's, else the candidate's."""
    known = next((tokenizers[side] for side in _SIDES if tokenizers[side] is not None), None)
    return None if known is None else decoder(known, special=special)


def _between(
    steps: Sequence[_Step], own: frozenset[Defect], tokenizers: Mapping[Side, Any | None]
) -> list[Finding]:
    decoders = Decoders(
        *(
            None if tokenizers[side] is None else decoder(tokenizers[side], special=True)
            for side in _SIDES
        )
    )
    diffs = [diff for step in steps for diff in step.diffs]
    return findings_of(diffs, sum(len(step.paired.pairs) for step in steps), own, decoders)


def _ends(steps: Sequence[_Step], tokenizers: Mapping[Side, Any | None]) -> list[Finding]:
    """Compare at which ids the responses of both sides end."""
    ends, sources = [], []
    for side in _SIDES:
        rows = [row for step in steps for row in step.rows(side)]
        ends.append(Ends.of(rows, likely_stops(rows, special_ids(tokenizers[side]))))
        sources.append(rows[0].source if rows else "")
    found = ends_finding(ends[0], ends[1], (sources[0], sources[1]))
    return [] if found is None else [found]


def _drift(steps: Sequence[_Step], tokenizers: Mapping[Side, Any | None]) -> list[Finding]:
    """Encode the compared responses of each side again, with that side's own tokenizer."""
    trips, sources = {}, {}
    for side in _SIDES:
        tokenizer = tokenizers[side]
        rows = [row for step in steps for row in step.rows(side) if row.response]
        if tokenizer is None or not rows:
            return []
        limit = max(len(row.response) for row in rows)
        responses = (row.response for row in rows)
        trips[side] = round_trip(responses, tokenizer, max_response_length=limit)
        sources[side] = rows[0].source
    return drift_findings(trips, sources)


def _tables(
    steps: Sequence[_Step], chosen: Chosen, tokenizers: Mapping[Side, Any | None]
) -> tuple[Table, ...]:
    pair = _chosen_pair(steps, chosen)
    if pair is None:
        return ()
    spell = tuple(
        None if tokenizers[side] is None else partial(_spelled, tokenizers[side]) for side in _SIDES
    )
    pairs = [pair for step in steps for pair in step.paired.pairs]
    stops = _stops(([p.reference for p in pairs], [p.candidate for p in pairs]), tokenizers)
    return (pair_table(pair, (spell[0], spell[1]), stops, whole=chosen.row is not None),)


def _spelled(tokenizer: Any, number: int) -> str | None:
    """Return a token as text, with what no terminal shows spelled out."""
    if not 0 <= number < 2**32 or tokenizer.id_to_token(number) is None:
        return "?"
    text = str(tokenizer.decode([number], skip_special_tokens=False))
    return repr(text)[1:-1] if "\ufffd" not in text else str(tokenizer.id_to_token(number))


def _chosen_pair(steps: Sequence[_Step], chosen: Chosen) -> RowPair | None:
    pairs = [pair for step in steps for pair in step.paired.pairs]
    if chosen.row is None:
        differing = next((diff.pair for step in steps for diff in step.diffs), None)
        return differing or next(iter(pairs), None)
    pair = next((pair for pair in pairs if pair.reference.row == chosen.row), None)
    if pair is None:
        raise RunError(
            where="--row",
            problem=f"is {chosen.row}, and that row of the reference has no counterpart",
            fix=f"give one of {', '.join(str(p.reference.row) for p in pairs[:12])}",
        )
    return pair


def _status(findings: Sequence[Finding], *, comparable: bool, whole: bool = False) -> RungStatus:
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return RungStatus.DIVERGED
    if not comparable:
        return RungStatus.MISSING
    aligned = whole and Severity.WARNING not in severities
    return RungStatus.ALIGNED if aligned else RungStatus.UNDECIDED


def _is_whole(steps: Sequence[_Step]) -> bool:
    """Tell whether every row has its counterpart."""
    return not any(step.paired.only_reference or step.paired.only_candidate for step in steps)


def _unpaired(
    alone: RungResult,
    steps: Sequence[_Step],
    by_step: Sequence[Mapping[int | None, Sequence[TokenRow]]],
) -> RungResult:
    """Say that no row has a counterpart; what each side has wrong by itself still counts."""
    why = Text(
        f"No step is on both sides: the reference has {_listed(by_step[0])}, the candidate "
        f"{_listed(by_step[1])}.",
        f"两侧没有相同的 step：参考有 {_listed(by_step[0])}，被测有 {_listed(by_step[1])}。",
    )
    if steps:
        why = Text(
            "No row of one side has its prompt on the other: `align data diff` compares the order.",
            "没有一行的 prompt 同时出现在两侧：请用 `align data diff` 比较数据顺序。",
        )
    summary = Text(f"{why.en} {alone.summary.en}", f"{why.zh}{alone.summary.zh}")
    status = _status(alone.findings, comparable=False)
    return replace(alone, status=status, summary=summary)


def _summary(steps: Sequence[_Step], alone: RungResult) -> Text:
    pairs = [pair for step in steps for pair in step.paired.pairs]
    samples = sum(pair.how is How.PROMPT for pair in pairs)
    equal = sum(pair.how is How.TOKENS for pair in pairs)
    left = [
        sum(len(rows) for rows in rests)
        for rests in (
            [step.paired.only_reference for step in steps],
            [step.paired.only_candidate for step in steps],
        )
    ]
    told = Text(
        f"{len(pairs)} rows paired: {equal} with equal ids, {samples} with other samples for a "
        f"response; {left[0]} rows of the reference and {left[1]} of the candidate have no "
        "counterpart.",
        f"配对 {len(pairs)} 行：id 完全相同的 {equal} 行，回复为另一次采样的 {samples} 行；"
        f"参考有 {left[0]} 行、被测有 {left[1]} 行没有对应。",
    )
    if alone.status is RungStatus.MISSING:
        return told
    return Text(f"{told.en} {alone.summary.en}", f"{told.zh}{alone.summary.zh}")


def _nothing(alone: RungResult, tokens: Mapping[Side, TokenRows]) -> RungResult:
    """Say which side has no token ids."""
    unread = [why for side in _SIDES for why in tokens[side].unread]
    lacking = [
        side
        for side in _SIDES
        if not (tokens[side].trainer or tokens[side].plain or tokens[side].engine)
    ]
    name = lacking[0] if len(lacking) == 1 else Side.BOTH
    where = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测", Side.BOTH: "两侧"}[name]
    why = f" ({'; '.join(unread[:3])})" if unread else ""
    return RungResult(
        name=Rung.TOKENS,
        status=RungStatus.MISSING,
        summary=Text(
            f"Not compared: no token ids in {'either run' if name is Side.BOTH else name.value}"
            f"{why}.",
            f"未比较：{where}没有 token id{why}。",
        ),
        findings=alone.findings,
        missing=alone.missing,
    )
