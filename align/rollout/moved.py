"""Do both runs give the same responses, but under other prompts? Known from texts alone.

At temperature 0, from one seed, or with replayed rollouts two runs say the same word by word. If
then the pairs of prompt and response differ, one of them joined responses to the wrong prompts: the
one in which those responses score worse. A model that does not heed its prompts gives the same
responses to other ones as well (an untrained model from one seed does), but scores alike, and
with other log_probs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.core.threshold import Threshold
from align.rollout.permutation import FAMILY
from dumps.store.rollout_index import Int64
from dumps.store.rollout_pair import RolloutPair, SideRows

MOVED_SHARE = Threshold(
    0.25,
    source="two independent samples of n texts share at most max(x exp(-2x)) = 0.18 of n as texts "
    "that occur once in each, whatever the number of possible texts",
)
_MIN_MOVED = 8
_QUOTED = 3
_LOOKED_AT = 64
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}
_QUOTE = 100


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """One step's responses that occur once on each side, under different prompts.

    Args:
        side: the run in which they score worse; None where scores do not tell, and the engine's
            log_probs do.
        reference, candidate: rows, one of each side at equal places.
        num_rows: of the smaller side.
        p: chance that scores of equal rank fall so much to one side.
    """

    step: int
    side: Side | None
    reference: SideRows
    candidate: SideRows
    num_rows: int
    p: float


def first_moved(pair: RolloutPair) -> Moved | None:
    """Return the first step at which more responses changed their prompt than chance allows."""
    for step, reference, candidate in pair.by_step():
        num_rows = min(len(reference), len(candidate))
        at = [_once(reference.response), _once(candidate.response)]
        _, a, b = np.intersect1d(
            reference.response[at[0]], candidate.response[at[1]], return_indices=True
        )
        ours, theirs = reference.take(at[0][a]), candidate.take(at[1][b])
        moved = (
            (ours.prompt != theirs.prompt)
            & np.isin(ours.prompt, candidate.prompt)
            & np.isin(theirs.prompt, reference.prompt)
            & (ours.prompt >= 0)
            & (theirs.prompt >= 0)
        )
        if moved.sum() >= max(_MIN_MOVED, MOVED_SHARE.value * num_rows):
            ours, theirs = ours.take(moved), theirs.take(moved)
            worse = np.sign(theirs.score - ours.score)
            p = _sign_p(int((worse > 0).sum()), int((worse < 0).sum()))
            if p <= FAMILY.value:
                side = Side.CANDIDATE if np.nansum(worse) < 0 else Side.REFERENCE
                return Moved(step, side, ours, theirs, num_rows, p)
            if _of_one_generation(ours, theirs):
                return Moved(step, None, ours, theirs, num_rows, p)
    return None


def _of_one_generation(reference: SideRows, candidate: SideRows) -> bool:
    """Tell whether rows have the same log_probs of the engine to the last bit.

    A response that is sampled again under another prompt, be it the same, has others.
    """
    some = np.arange(min(len(reference), _LOOKED_AT))
    pairs = zip(*(side.index.texts(side.row[some]) for side in (reference, candidate)), strict=True)
    return all(len(a.log_probs) > 1 and a.log_probs == b.log_probs for a, b in pairs)


def _sign_p(up: int, down: int) -> float:
    """Return the two-sided p of the sign test: up and down are equally likely under no change."""
    total, fewer = up + down, min(up, down)
    tail = sum(math.comb(total, k) for k in range(fewer + 1))
    return min(1.0, float(Fraction(2 * tail, 2**total)))


def _once(texts: Int64) -> Int64:
    """Return the places of texts that occur once."""
    _, first, count = np.unique(texts, return_index=True, return_counts=True)
    once: Int64 = first[count == 1]
    return once


def moved_finding(moved: Moved) -> Finding:
    """Say that the same responses stand under other prompts, and where they are wrong."""
    count, side = len(moved.reference), moved.side
    scores = [float(np.nanmean(rows.score)) for rows in (moved.reference, moved.candidate)]
    rows = Text(
        f"{count} of {moved.num_rows} rows at step {moved.step}",
        f"第 {moved.step} 步 {moved.num_rows} 行中有 {count} 行",
    )
    told = Text(
        f"Chance that their scores fall so much to one side: {moved.p:.1g}.",
        f"得分如此偏向一侧的概率为 {moved.p:.1g}。",
    )
    if side is None:
        told = Text(
            "Their log_probs of the engine are equal to the last bit, so each was generated once; "
            "scores do not tell which side has it under the wrong prompt.",
            "它们在推理引擎中的 log_probs 逐位相同，说明每条只生成过一次；"
            "但得分无法说明哪一侧放错了 prompt。",
        )
    where = f"the {side.value} has" if side is not None else "the two runs have"
    worse = ", where they score worse" if side is not None else ""
    return Finding(
        id="rollout.responses_permuted",
        rung=Rung.ROLLOUT,
        severity=Severity.ERROR,
        title=Text(
            f"{where} the same responses under other prompts{worse}: {rows.en}",
            f"{'两次运行' if side is None else _ZH[side]}中相同的回复对应到了别的 prompt"
            f"{'' if side is None else '，且得分更低'}：{rows.zh}",
        ),
        reference=scores[0],
        candidate=scores[1],
        evidence=(
            *_quotes(moved.reference, Side.REFERENCE),
            *_quotes(moved.candidate, Side.CANDIDATE),
        ),
        why=Text(
            "Both runs hold these responses word by word, each once, so one of them joined "
            "responses to the wrong prompts, where they are scored as answers to another question. "
            f"{told.en}",
            "两次运行都逐字包含这些回复且各只出现一次，因此其中一方把回复与错误的 prompt 配对，"
            f"并按别的问题打分。{told.zh}",
        ),
        fix=Text(
            "Repeat prompts interleaved on both ends (a a b b, DataProto.repeat(interleave=True)), "
            "and join responses to prompts by uid, not by place.",
            "在生成前后都按 a a b b 的顺序重复 prompt（DataProto.repeat(interleave=True)），"
            "并按 uid 而不是位置合并回复与 prompt。",
        ),
        mechanism=Mechanism(Rung.ROLLOUT, Strength.SEMANTIC),
    )


def _quotes(rows: SideRows, side: Side) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            text.source,
            side,
            line=text.line,
            key="prompt and response",
            text=" → ".join(
                part.replace("\n", "\\n")[-_QUOTE:] for part in (text.prompt, text.response)
            )[:200],
        )
        for text in rows.index.texts(rows.row[:_QUOTED])
    )
