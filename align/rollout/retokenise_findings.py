"""How many responses would get other ids if their text were encoded again, as a finding."""

from __future__ import annotations

from collections.abc import Mapping

from align.core.finding import Evidence, Finding, Severity, Side
from align.core.rung import Rung
from align.core.text import Text
from align.rollout.retokenise import Drift, RoundTrip

_QUOTED = 3
_CHANCE = 0.01  # that a side of the other's drift rate shows none by luck
_SIDES = (Side.REFERENCE, Side.CANDIDATE)


def drift_findings(trips: Mapping[Side, RoundTrip], sources: Mapping[Side, str]) -> list[Finding]:
    """Report drift, and a side that has none where the other's rate makes that no accident."""
    if not any(trip.num_drifted for trip in trips.values()):
        return []
    suspect = _encoded_side(trips)
    counts = [f"{trips[side].num_drifted}/{trips[side].num_rows}" for side in _SIDES]
    title = Text(
        f"responses that change if their text is encoded again: {counts[0]} in the reference, "
        f"{counts[1]} in the candidate{_longer(trips).en}",
        f"文本重新编码后 id 会改变的回复：参考 {counts[0]}，被测 {counts[1]}{_longer(trips).zh}",
    )
    why = Text(
        "Byte pair encoding is no bijection: a trainer that encodes text takes log_probs of other "
        "tokens than were sampled for these.",
        "BPE 并非一一对应：若训练侧由文本重新编码，"
        "这些回复的 log_probs 对应的就不是采样所得的 token。",
    )
    if suspect is not None:
        other = "参考" if suspect is Side.REFERENCE else "被测"
        why = Text(
            f"{why.en} In the {suspect.value} none changes, which at the other side's rate is no "
            "accident: its ids were made from text.",
            f"{why.zh}{other}没有一条改变，按另一侧的比例这不是偶然：其 id 由文本编码而来。",
        )
    return [
        Finding(
            id="tokens.retokenisation_drift",
            rung=Rung.TOKENS,
            severity=Severity.INFO if suspect is None else Severity.WARNING,
            title=title,
            reference=trips[Side.REFERENCE].num_drifted,
            candidate=trips[Side.CANDIDATE].num_drifted,
            evidence=tuple(
                _quoted(drift, side, sources[side])
                for side in _SIDES
                for drift in trips[side].drifts[:_QUOTED]
            ),
            why=why,
            fix=Text(
                "Hand ids from the rollout engine to the trainer, never text; append the ids of a "
                "new turn to those of the turns before.",
                "请把推理引擎的 id 直接交给训练侧，不要传文本；"
                "多轮时把新一轮的 id 追加到之前的 id 之后。",
            ),
        )
    ]


def _encoded_side(trips: Mapping[Side, RoundTrip]) -> Side | None:
    """Return the side without drift, where the other's rate leaves that less than `_CHANCE`."""
    for side, other in (_SIDES, _SIDES[::-1]):
        none, some = trips[side], trips[other]
        if none.num_drifted or not none.num_rows or not some.num_rows:
            continue
        rate = some.num_drifted / some.num_rows
        if rate > 0 and (1 - rate) ** none.num_rows < _CHANCE:
            return side
    return None


def _longer(trips: Mapping[Side, RoundTrip]) -> Text:
    longer = sum(trip.num_longer for trip in trips.values())
    if not longer:
        return Text("", "")
    return Text(
        f"; {longer} would be longer than the longest response sampled",
        f"；其中 {longer} 条会超过采样到的最长回复",
    )


def _quoted(drift: Drift, side: Side, source: str) -> Evidence:
    text = (
        f"response {drift.row}, token {drift.position}: {list(drift.sampled[:3])} "
        f"{' '.join(drift.sampled_tokens[:3])!r} becomes {list(drift.encoded[:3])} "
        f"{' '.join(drift.encoded_tokens[:3])!r} in {drift.text!r}"
    )
    return Evidence(source, side, text=text[:200])
