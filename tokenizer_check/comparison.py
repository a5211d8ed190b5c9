"""Pair what the two runs state, like with like: the same role in the same kind of file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizer_check.special_tokens import (
    OF_GENERATION,
    OF_TOKENIZER,
    ROLES,
    File,
    SpecialTokens,
    Token,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One role in one kind of file; a side that does not state it is None."""

    role: str
    file: File
    reference: Token | None
    candidate: Token | None

    @property
    def is_compared(self) -> bool:
        """Whether both sides state it."""
        return self.reference is not None and self.candidate is not None

    @property
    def differs(self) -> bool:
        """Whether both sides state it, and not the same."""
        if self.reference is None or self.candidate is None:
            return False
        return not self.reference.same_as(self.candidate)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything two runs state about special tokens."""

    reference: SpecialTokens
    candidate: SpecialTokens
    pairs: tuple[Pair, ...]

    @property
    def num_compared(self) -> int:
        """Statements found on both sides."""
        return sum(pair.is_compared for pair in self.pairs)

    def differing(self, role: str) -> list[Pair]:
        """Return the differing pairs of a role, the strongest file first."""
        return [pair for pair in self.pairs if pair.role == role and pair.differs]

    def decisive(self, role: str) -> list[Pair]:
        """Return the differing pairs that decide what a run does.

        Of each purpose only the strongest file that both sides have counts: config.json does not
        where generation_config.json is there, as it is only its stand-in.
        """
        found = []
        for files in (OF_TOKENIZER, OF_GENERATION):
            of_role = [p for p in self.pairs if p.role == role and p.file in files]
            strongest = next((pair for pair in of_role if pair.is_compared), None)
            if strongest is not None and strongest.differs:
                found.append(strongest)
        return found


def compare_tokens(reference: SpecialTokens, candidate: SpecialTokens) -> Comparison:
    """Pair every statement; one that a run contradicts itself on is on no side."""
    return Comparison(reference, candidate, tuple(_pairs(reference, candidate)))


def _pairs(reference: SpecialTokens, candidate: SpecialTokens) -> Iterator[Pair]:
    for role in ROLES:
        for file in _IN_ORDER:
            ours, theirs = (side.tokens.get((file, role)) for side in (reference, candidate))
            if ours is not None or theirs is not None:
                yield Pair(role, file, ours, theirs)


_IN_ORDER: Sequence[File] = (*OF_TOKENIZER, *OF_GENERATION)
