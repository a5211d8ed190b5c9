"""Where two token sequences differ, as spans, and in whose turn of the conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rapidfuzz.distance import Indel

from align.rollout.token_row import Ids

Decode = Callable[[Sequence[int]], str]

_HEADERS = re.compile(
    r"<\|im_start\|>(?P<chatml>\w+)"
    r"|<\|start_header_id\|>(?P<llama>\w+)<\|end_header_id\|>"
    r"|<start_of_turn>(?P<gemma>\w+)"
    r"|<\|(?P<bare>system|user|assistant|observation)\|>"
    r"|<｜(?P<deepseek>User|Assistant)｜>"
    r"|(?P<inst>\[INST\])"
    r"|(?:^|\n)(?P<words>system|user|assistant|Human|Assistant)(?=:|\n)"
)
"""How chat templates begin a turn; the last form is what is left without special tokens."""
_WORDS = {"[INST]": "user", "Human": "user", "User": "user", "model": "assistant"}
_JOINED = 2  # spans with fewer equal tokens between them are one


@dataclass(frozen=True, slots=True)
class Span:
    """One place at which two sequences differ.

    Args:
        start: first token of it in the reference's sequence.
        other_start: likewise in the candidate's.
        reference, candidate: the tokens there; empty on the side that lacks them.
    """

    start: int
    other_start: int
    reference: Ids
    candidate: Ids

    @property
    def num_tokens(self) -> int:
        """How many tokens differ."""
        return max(len(self.reference), len(self.candidate))

    @property
    def edit(self) -> tuple[Ids, Ids]:
        """What is done, wherever it is done."""
        return self.reference, self.candidate


def spans(reference: Ids, candidate: Ids) -> tuple[Span, ...]:
    """Return every span at which the sequences differ, in order."""
    limits: list[list[int]] = []
    for code in Indel.opcodes(reference, candidate):
        if code.tag == "equal":
            continue
        near = limits and code.src_start - limits[-1][1] < _JOINED
        if near and code.dest_start - limits[-1][3] < _JOINED:
            limits[-1][1], limits[-1][3] = code.src_end, code.dest_end
        else:
            limits.append([code.src_start, code.src_end, code.dest_start, code.dest_end])
    return tuple(Span(a, c, reference[a:b], candidate[c:d]) for a, b, c, d in limits)


def turn_of(span: Span, reference: Ids, candidate: Ids, decode: Decode) -> str | None:
    """Return the role whose turn a span belongs to: the turn it adds, else the one it stands in.

    Args:
        decode: ids to text, special tokens included.
    """
    longer = span.reference if len(span.reference) >= len(span.candidate) else span.candidate
    inside = _HEADERS.search(decode(longer))
    if inside is not None:
        return _role(inside)
    before = decode(reference[: span.start] if span.start else candidate[: span.other_start])
    found = list(_HEADERS.finditer(before))
    return _role(found[-1]) if found else None


def _role(header: re.Match[str]) -> str:
    word = next(text for text in header.groupdict().values() if text is not None)
    return _WORDS.get(word, word.lower())
