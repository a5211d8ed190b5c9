"""Is a response still the same ids after its text was encoded again?

Byte pair encoding is no bijection: many id sequences decode to one text, and the encoder gives one
of them. A policy samples any of them, so a trainer that encodes text again takes log_probs of
tokens that were never sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Protocol

from align.rollout.token_defects import Broken, Defect, first_difference
from align.rollout.token_row import Ids, TokenBatch

_AT_ONCE = 1024  # responses handed to the encoder's threads; bounds memory
_KEPT = 5
_REPLACEMENT = "\ufffd"


class BatchEncoder(Protocol):
    """The part of a `tokenizers.Tokenizer` that makes ids of texts."""

    def encode_batch_fast(
        self, input: list[str], *, add_special_tokens: bool = True
    ) -> Sequence[Encoded]: ...


class Encoder(BatchEncoder, Protocol):
    """The part of a `tokenizers.Tokenizer` that a round trip takes."""

    def decode_batch(
        self, sequences: list[list[int]], skip_special_tokens: bool = True
    ) -> list[str]: ...

    def id_to_token(self, id: int) -> str | None: ...

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]: ...


class Encoded(Protocol):
    """The part of a `tokenizers.Encoding` that is used here."""

    @property
    def ids(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Drift:
    """One response that does not come back.

    Args:
        row: its place among those given.
        position: the first token that differs.
        sampled, encoded: the ids from there on, at most eight.
        sampled_tokens, encoded_tokens: their strings, as the vocabulary spells them.
        text: what both sequences decode to, around the place.
    """

    row: int
    position: int
    sampled: Ids
    encoded: Ids
    sampled_tokens: tuple[str, ...]
    encoded_tokens: tuple[str, ...]
    text: str


@dataclass(slots=True)
class RoundTrip:
    """What encode(decode(ids)) made of the responses.

    Args:
        num_rows, num_tokens: responses checked, and their tokens.
        num_drifted: of other ids at the same text.
        num_broken_text: whose ids are no whole characters, which no text can hold.
        num_beyond: with an id that the vocabulary has not; not encoded.
        num_longer: whose text makes more tokens than the response had room for.
        drifts: the first drifted.
    """

    num_rows: int = 0
    num_tokens: int = 0
    num_drifted: int = 0
    num_broken_text: int = 0
    num_beyond: int = 0
    num_longer: int = 0
    drifts: list[Drift] = field(default_factory=list)


def round_trip(
    responses: Iterable[Sequence[int]],
    tokenizer: Encoder,
    *,
    max_response_length: int | None = None,
) -> RoundTrip:
    """Decode and encode every response.

    Args:
        responses: token ids.
        tokenizer: of the `tokenizers` library; its threads do the work.
        max_response_length: the limit at which responses were cut; None where not known.
    """
    found = RoundTrip()
    left = enumerate(responses)
    known = frozenset(tokenizer.get_vocab(True).values())
    while several := list(islice(left, _AT_ONCE)):
        found.num_rows += len(several)
        found.num_tokens += sum(len(ids) for _, ids in several)
        whole = [(row, ids) for row, ids in several if known.issuperset(ids)]
        found.num_beyond += len(several) - len(whole)
        _check(whole, tokenizer, max_response_length, found)
    return found


def _check(
    several: Sequence[tuple[int, Sequence[int]]],
    tokenizer: Encoder,
    limit: int | None,
    found: RoundTrip,
) -> None:
    texts = tokenizer.decode_batch([list(ids) for _, ids in several], skip_special_tokens=False)
    again = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    for (row, ids), text, encoding in zip(several, texts, again, strict=True):
        encoded = encoding.ids
        if encoded == list(ids):
            continue
        if _REPLACEMENT in text:
            found.num_broken_text += 1
            continue
        found.num_drifted += 1
        found.num_longer += limit is not None and len(encoded) > limit
        if len(found.drifts) < _KEPT:
            found.drifts.append(_drift(row, tuple(ids), tuple(encoded), tokenizer))


def _drift(row: int, sampled: Ids, encoded: Ids, tokenizer: Encoder) -> Drift:
    at = first_difference(sampled, encoded)
    ours, theirs = sampled[at : at + 8], encoded[at : at + 8]
    (around,) = tokenizer.decode_batch([list(sampled[max(0, at - 4) : at + 8])], False)
    return Drift(
        row,
        at,
        ours,
        theirs,
        tuple(tokenizer.id_to_token(i) or f"<{i}>" for i in ours),
        tuple(tokenizer.id_to_token(i) or f"<{i}>" for i in theirs),
        around,
    )


def prefix_breaks(batch: TokenBatch) -> Iterator[Broken]:
    """Find turns whose tokens do not begin with all tokens of the turn before.

    In a conversation of several turns every turn appends; a loop that renders or encodes the
    conversation anew changes tokens that were already sampled.
    """
    if batch.trajectories is None:
        return
    turns = sorted(
        (
            (name, turn, row)
            for (name, turn), row in zip(batch.trajectories, batch.rows, strict=True)
        ),
        key=lambda item: item[:2],
    )
    for (name, _, before), (next_name, _, after) in pairwise(turns):
        if name != next_name or after.tokens[: len(before.tokens)] == before.tokens:
            continue
        at = first_difference(before.tokens, after.tokens)
        around = slice(max(0, at - 2), at + 6)
        yield Broken(
            Defect.PREFIX_BROKEN,
            after.step,
            after.source,
            after.row,
            "input_ids",
            at,
            before.tokens[around],
            after.tokens[around],
        )


def breaks_prefix(texts: Sequence[str], tokenizer: BatchEncoder) -> tuple[int, int] | None:
    """Return the first turn, and its token, at which encoding a growing conversation changes.

    Args:
        texts: the conversation as rendered up to each turn; each begins with the one before.
    """
    encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    for turn, (before, after) in enumerate(pairwise(encoded), 1):
        ours, theirs = tuple(before.ids), tuple(after.ids)
        if theirs[: len(ours)] != ours:
            return turn, first_difference(ours, theirs)
    return None
