"""First differing entry and counts of two merge lists, vocabularies and sets of added tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dumps.readers.tokenizer_content import AddedToken, Merge


@dataclass(frozen=True, slots=True)
class MergesDiff:
    """Two merge lists that are not the same.

    Args:
        rank: 0-based place of the first difference.
        reference, candidate: the merges there; None where a list has ended.
        num_only_reference, num_only_candidate: merges that the other side does not have at all.
    """

    rank: int
    reference: Merge | None
    candidate: Merge | None
    num_only_reference: int
    num_only_candidate: int


def diff_merges(reference: Sequence[Merge], candidate: Sequence[Merge]) -> MergesDiff | None:
    """Compare two merge lists, best merge first; their order counts."""
    if reference == candidate:
        return None
    shared = min(len(reference), len(candidate))
    rank = next((n for n in range(shared) if reference[n] != candidate[n]), shared)
    ours, theirs = set(reference), set(candidate)
    return MergesDiff(
        rank,
        reference[rank] if rank < len(reference) else None,
        candidate[rank] if rank < len(candidate) else None,
        len(ours - theirs),
        len(theirs - ours),
    )


@dataclass(frozen=True, slots=True)
class VocabularyDiff:
    """Two vocabularies that are not the same.

    Args:
        token: the differing token with the lowest id.
        reference, candidate: its ids; None where a side does not have it.
        num_other_id: tokens of both sides under another id.
        num_only_reference, num_only_candidate: tokens that the other side does not have.
    """

    token: str
    reference: int | None
    candidate: int | None
    num_other_id: int
    num_only_reference: int
    num_only_candidate: int


def diff_vocabularies(
    reference: Mapping[str, int], candidate: Mapping[str, int], besides: frozenset[str]
) -> VocabularyDiff | None:
    """Compare two vocabularies.

    Args:
        besides: tokens to leave out; one file lists added tokens in it, another does not.
    """
    if reference == candidate:
        return None
    differing = [
        (number, token)
        for side, other in ((reference, candidate), (candidate, reference))
        for token, number in side.items()
        if other.get(token) != number and token not in besides
    ]
    if not differing:
        return None
    _, first = min(differing)
    tokens = {token for _, token in differing}
    return VocabularyDiff(
        token=first,
        reference=reference.get(first),
        candidate=candidate.get(first),
        num_other_id=sum(t in reference and t in candidate for t in tokens),
        num_only_reference=sum(t not in candidate for t in tokens),
        num_only_candidate=sum(t not in reference for t in tokens),
    )


@dataclass(frozen=True, slots=True)
class AddedDiff:
    """Added tokens that are not the same, in the order of the text.

    Args:
        other_id: tokens under another id, with both ids.
        only_one_side: tokens of one side alone; None where the sides list different kinds.
        other_flags: tokens of which a flag that both sides state differs, with its name.
    """

    other_id: Mapping[str, tuple[int, int]]
    only_one_side: Mapping[str, tuple[int | None, int | None]]
    other_flags: Mapping[str, tuple[str, bool, bool]]

    def __bool__(self) -> bool:
        return bool(self.other_id or self.only_one_side or self.other_flags)


def diff_added(
    reference: Mapping[str, AddedToken], candidate: Mapping[str, AddedToken], *, is_whole: bool
) -> AddedDiff:
    """Compare two sets of added tokens.

    Args:
        is_whole: both sides come from the same kind of file, so that a token that one of them
            lacks is missing.
    """
    both = sorted(reference.keys() & candidate.keys())
    alone = sorted(reference.keys() ^ candidate.keys()) if is_whole else []
    pairs = {token: (reference[token], candidate[token]) for token in both}
    return AddedDiff(
        other_id={t: (a.id, b.id) for t, (a, b) in pairs.items() if a.id != b.id},
        only_one_side={t: (_id(reference, t), _id(candidate, t)) for t in alone},
        other_flags={t: flag for t, (a, b) in pairs.items() if (flag := _other_flag(a, b))},
    )


def _id(tokens: Mapping[str, AddedToken], token: str) -> int | None:
    return tokens[token].id if token in tokens else None


def _other_flag(a: AddedToken, b: AddedToken) -> tuple[str, bool, bool] | None:
    common = sorted(a.flags.keys() & b.flags.keys())
    return next(((n, a.flags[n], b.flags[n]) for n in common if a.flags[n] != b.flags[n]), None)
