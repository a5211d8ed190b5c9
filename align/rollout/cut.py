"""Responses of one run that are the other's without their last tokens.

Two samples of one prompt part within a few tokens and do not meet again, so that one begins with
all of the other by chance only where it is a few tokens long.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import islice

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.rollout.near import left_over
from dumps.store.rollout_index import Int64
from dumps.store.rollout_pair import RolloutPair, SideRows

_MIN_TOKENS = 8
_MAX_ROWS = 4096  # of each side
_SHARE = 0.5  # of the rows that have no equal twin
_LEAST = 3
_QUOTED = 3
_SHOWN = 6
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """What one side lacks.

    Args:
        side: whose responses are shorter.
        rows: pairs of positions, of the shorter response and of the whole one.
        lost: ids that the shorter ones lack, by row.
        num_others: rows of that side without an equal twin.
    """

    side: Side
    rows: tuple[tuple[int, int], ...]
    lost: tuple[Ids, ...]
    num_others: int


def cut_responses(pair: RolloutPair) -> Cut | None:
    """Find the side whose responses end early; None where neither's do, or ids are not recorded."""
    sides = {Side.REFERENCE: pair.reference, Side.CANDIDATE: pair.candidate}
    left = dict(zip(sides, left_over(pair.reference, pair.candidate), strict=True))
    ids = {side: _ids(rows, left[side]) for side, rows in sides.items()}
    for side, other in ((Side.CANDIDATE, Side.REFERENCE), (Side.REFERENCE, Side.CANDIDATE)):
        found = list(_pairs(sides[side], ids[side], sides[other], ids[other]))
        if len(found) >= max(_LEAST, _SHARE * len(ids[side])):
            lost = tuple(ids[other][b][len(ids[side][a]) :] for a, b in found)
            return Cut(side, tuple(found), lost, len(ids[side]))
    return None


def cut_finding(pair: RolloutPair, cut: Cut) -> Finding:
    """Describe responses that end early."""
    lengths = Counter(map(len, cut.lost))
    usual = lengths.most_common(1)[0][0]
    same = len(lengths) == 1
    tokens = f"{'' if same else 'about '}{usual} token{'s' * (usual > 1)}"
    side, count = cut.side, len(cut.rows)
    other = Side.REFERENCE if side is Side.CANDIDATE else Side.CANDIDATE
    rows = {Side.REFERENCE: pair.reference, Side.CANDIDATE: pair.candidate}
    last = {ids[-1] for ids in cut.lost}
    ending = (
        Text(f", which always end with id {min(last)}", f"，所缺部分总以 id {min(last)} 结尾")
        if len(last) == 1
        else Text("", "")
    )
    return Finding(
        id="rollout.responses_cut",
        rung=Rung.ROLLOUT,
        severity=Severity.ERROR,
        title=Text(
            f"{count} responses of the {side.value} are those of the {other.value} without their "
            f"last tokens: {tokens} each{ending.en}",
            f"{_ZH[side]}的 {count} 条回复是{_ZH[other]}的回复去掉末尾 token："
            f"每条{'' if same else '约'} {usual} 个{ending.zh}",
        ),
        reference=count if side is Side.REFERENCE else 0,
        candidate=count if side is Side.CANDIDATE else 0,
        evidence=tuple(
            _evidence(rows[of], place, of)
            for pair_of_rows in islice(cut.rows, _QUOTED)
            for of, place in zip((side, other), pair_of_rows, strict=True)
        ),
        why=Text(
            "Samples of one prompt do not agree to their last tokens by chance, so these are the "
            "same responses, and something takes their ends off: a stop token that is stripped, "
            "or a length that counts one more token.",
            "同一 prompt 的不同采样不会偶然一致到末尾，因此这些是同一批回复，而末尾被去掉了："
            "停止符被剥除，或长度上限的计数不同。",
        ),
        fix=Text(
            "Look at what happens to the ids between the engine and the trainer: stop tokens, "
            "include_stop_str_in_output, max_tokens, slices of the response.",
            "检查 id 从推理引擎到训练器之间的处理：停止符、include_stop_str_in_output、"
            "max_tokens 以及对回复的切片。",
        ),
        mechanism=Mechanism(
            Rung.ROLLOUT, Strength.SEMANTIC, ("response_length/*", "response_length_non_aborted/*")
        ),
    )


def _pairs(
    shorter: SideRows, own: dict[int, Ids], longer: SideRows, others: dict[int, Ids]
) -> list[tuple[int, int]]:
    """Pair each row with one of the same prompt and step that begins with all of it."""
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in others:
        waiting[int(longer.step[row]), int(longer.prompt[row])].append(row)
    found = []
    for row, ids in own.items():
        rows = waiting[int(shorter.step[row]), int(shorter.prompt[row])]
        if len(ids) < _MIN_TOKENS:
            continue
        whole = next((each for each in rows if _begins(others[each], ids)), None)
        if whole is not None:
            rows.remove(whole)
            found.append((row, whole))
    return found


def _begins(whole: Ids, part: Ids) -> bool:
    return len(whole) > len(part) and whole[: len(part)] == part


def _ids(side: SideRows, rows: Int64) -> dict[int, Ids]:
    """Return the ids of the first responses by position; rows without ids are not read."""
    rows = rows[side.index.num_tokens[side.row[rows]] > 0][:_MAX_ROWS]
    texts = side.index.texts(side.row[rows])
    pairs = zip(rows.tolist(), texts, strict=True)
    return {row: text.response_ids for row, text in pairs if text.response_ids}


def _evidence(side: SideRows, row: int, of: Side) -> Evidence:
    (text,) = side.index.texts([int(side.row[row])])
    shown = f"{len(text.response_ids)} tokens, the last {list(text.response_ids[-_SHOWN:])}"
    return Evidence(text.source, of, line=text.line, key="response_ids", text=shown[:200])
