"""At which ids the responses of two runs end, where the responses themselves are other samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.rollout.token_defects import Defect
from align.rollout.token_row import TokenRow
from align.rollout.token_texts import WORDING

_CHANCE = 0.01  # that responses like the other side's show no end by luck
_HALF = 0.5  # of a side's responses must end by themselves to say what an end is
_LENGTHS = ("response_length/*", "response_length_non_aborted/*")


@dataclass(frozen=True, slots=True)
class Ends:
    """How the responses of one side end.

    Args:
        stops: ids taken for ends.
        num_ended: responses that end with one of them.
        num_rows: all responses.
        last: how often each id comes last.
    """

    stops: frozenset[int]
    num_ended: int
    num_rows: int
    last: Counter[int]

    @classmethod
    def of(cls, rows: Sequence[TokenRow], stops: frozenset[int]) -> Ends:
        """Count the ends of a side's rows."""
        last = Counter(row.response[-1] for row in rows if row.response)
        return cls(stops, sum(last[i] for i in stops), sum(last.values()), last)


def ends_finding(reference: Ends, candidate: Ends, sources: tuple[str, str]) -> Finding | None:
    """Report a side whose responses never end where the other side's do."""
    sides = (reference, Side.REFERENCE), (candidate, Side.CANDIDATE)
    for (ended, ended_side), (other, side) in (sides, sides[::-1]):
        share = ended.num_ended / ended.num_rows if ended.num_rows else 0.0
        reached = sum(other.last[i] for i in ended.stops)
        if share < _HALF or reached or (1 - share) ** other.num_rows >= _CHANCE:
            continue
        return _finding(ended, ended_side, other, side, sources)
    return None


def _finding(
    ended: Ends, ended_side: Side, other: Ends, side: Side, sources: tuple[str, str]
) -> Finding:
    words, zh = WORDING[Defect.EOS_MISSING], {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}
    shown = _shown(ended, ended.stops)
    instead = ""
    if other.num_ended * 2 >= other.num_rows:
        instead = _shown(other, other.stops)
    counts = {ended_side: ended.num_ended, side: 0}
    source = dict(zip((Side.REFERENCE, Side.CANDIDATE), sources, strict=True))
    return Finding(
        id="tokens.eos_missing",
        rung=Rung.TOKENS,
        severity=Severity.ERROR,
        title=Text(
            f"none of {other.num_rows} responses of the {side.value} ends with {shown}, as "
            f"{ended.num_ended} of {ended.num_rows} of the {ended_side.value} do"
            + (f"; they end with {instead}" if instead else ""),
            f"{zh[side]}的 {other.num_rows} 条回复没有一条以 {shown} 结束，"
            f"而{zh[ended_side]}的 {ended.num_rows} 条中有 {ended.num_ended} 条如此"
            + (f"；它们以 {instead} 结束" if instead else ""),
        ),
        reference=counts[Side.REFERENCE],
        candidate=counts[Side.CANDIDATE],
        evidence=tuple(
            Evidence(source[of], of, key="last ids", text=f"last ids: {_shown(ends, None)}")
            for ends, of in sorted(((ended, ended_side), (other, side)), key=lambda e: e[1].value)
        ),
        why=words.why,
        fix=words.fix,
        mechanism=Mechanism(Rung.TOKENS, Strength.SEMANTIC, _LENGTHS),
    )


def _shown(ends: Ends, only: frozenset[int] | None) -> str:
    """Return the most frequent last ids with their counts."""
    kept = [(i, n) for i, n in ends.last.most_common() if only is None or i in only][:4]
    if only is not None:
        return " or ".join(str(i) for i, _ in kept)
    return ", ".join(f"{i} ({n} rows)" for i, n in kept)
