"""Encode the same texts with both tokenizers: the first differing id, and what is responsible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from align.core.text import Text
from dumps.readers.tokenizer_content import Merge
from tokenizer_check.content import Content
from tokenizer_check.sample_texts import Sample

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_SPAN = 40
_MAX_EXPLAINED = 32  # texts of which the responsible part is sought
_Ranks = Mapping[Merge, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """The token of one side where the ids part; None after its last one."""

    id: int | None
    token: str | None

    def shown(self) -> str:
        """Return ``'large' (16767)``."""
        return "-" if self.id is None else f"{self.token!r} ({self.id})"


@dataclass(frozen=True, slots=True)
class EncodingDiff:
    """One text that has other ids.

    Args:
        at: 0-based number of the first differing token.
        num_tokens: of both sides.
        pieces: the tokens there.
        responsible: what makes them differ; None where it was not sought.
    """

    sample: Sample
    at: int
    num_tokens: tuple[int, int]
    pieces: tuple[Piece, Piece]
    responsible: Text | None


@dataclass(frozen=True, slots=True)
class EncodingComparison:
    """Every text that differs; ``num_texts`` were encoded."""

    num_texts: int
    diffs: tuple[EncodingDiff, ...]


def compare_encodings(
    tokenizers: tuple[Tokenizer, Tokenizer],
    contents: tuple[Content, Content],
    samples: Sequence[Sample],
) -> EncodingComparison:
    """Encode every text without the tokens that a post-processor adds."""
    texts = [each.text for each in samples]
    ours, theirs = (
        tokenizer.encode_batch(texts, add_special_tokens=False) for tokenizer in tokenizers
    )
    explain = _Explanation(tokenizers, contents)
    diffs: list[EncodingDiff] = []
    for each, a, b in zip(samples, ours, theirs, strict=True):
        if a.ids == b.ids:
            continue
        at = next(n for n, (x, y) in enumerate(zip_longest(a.ids, b.ids)) if x != y)
        why = explain.of(each.text, (a, b), at) if len(diffs) < _MAX_EXPLAINED else None
        pieces = (_piece(tokenizers[0], a, at), _piece(tokenizers[1], b, at))
        diffs.append(EncodingDiff(each, at, (len(a.ids), len(b.ids)), pieces, why))
    return EncodingComparison(len(samples), tuple(diffs))


def _piece(tokenizer: Tokenizer, encoding: Encoding, at: int) -> Piece:
    """Return a token as text; part of a character as the vocabulary writes it."""
    if at >= len(encoding.ids):
        return Piece(None, None)
    text = tokenizer.decode([encoding.ids[at]], skip_special_tokens=False)
    is_part = not text or "\ufffd" in text
    return Piece(encoding.ids[at], encoding.tokens[at] if is_part else text)


class _Explanation:
    """Follows a text through both tokenizers, until they part."""

    def __init__(
        self, tokenizers: tuple[Tokenizer, Tokenizer], contents: tuple[Content, Content]
    ) -> None:
        self._tokenizers = tokenizers
        self._contents = contents
        self._ranks: tuple[_Ranks, _Ranks] | None = None

    def of(self, text: str, encodings: tuple[Encoding, Encoding], at: int) -> Text:
        """Name the first stage that differs: added token, normaliser, pre-tokenizer, merge."""
        tokens = [e.tokens[at] if at < len(e.tokens) else None for e in encodings]
        if tokens[0] == tokens[1]:
            return Text("vocabulary: the token has another id", "词表：该 token 的 id 不同")
        added = self._added_on_one_side(tokens)
        if added is not None:
            return Text(f"added token {added!r}", f"附加 token {added!r}")
        normal = [normalised(tokenizer, text) for tokenizer in self._tokenizers]
        rewritten = first_difference(normal[0], normal[1])
        words = [pre_tokens(t, normal[0][:rewritten]) for t in self._tokenizers]
        if rewritten is not None:  # the last word before it may be cut in two
            words = [side[:-1] for side in words]
        number = first_difference(words[0], words[1])
        merge = self._merge(words[0][:number])
        if merge is not None:
            return merge
        if number is not None:
            cut = [" ".join(map(repr, side[number : number + 2])) or "-" for side in words]
            return Text(
                f"pre-tokenizer: cuts {cut[0]} / {cut[1]}",
                f"pre-tokenizer：切分为 {cut[0]} / {cut[1]}",
            )
        if rewritten is not None:
            ours, theirs = (repr(side[rewritten : rewritten + _SPAN]) for side in normal)
            return Text(f"normaliser: {ours} / {theirs}", f"normalizer：{ours} / {theirs}")
        return Text(
            "model settings of tokenizer.json, or scores of pieces",
            "tokenizer.json 的 model 设置，或各 piece 的分值",
        )

    def _added_on_one_side(self, tokens: Sequence[str | None]) -> str | None:
        listed = [
            {token for found in content.added.values() for token in found.value}
            for content in self._contents
        ]
        for token, own, other in zip(tokens, listed, listed[::-1], strict=True):
            if token is not None and token in own and token not in other:
                return token
        return None

    def _merge(self, words: Sequence[str]) -> Text | None:
        """Name the first merge of any word that only one side makes, with both ranks."""
        if self._ranks is None:
            ours, theirs = (
                {} if c.merges is None else {m: n for n, m in enumerate(c.merges.value)}
                for c in self._contents
            )
            self._ranks = (ours, theirs)
        for word in words:
            made = [merges_made(word, ranks) for ranks in self._ranks]
            number = first_difference(made[0], made[1])
            if number is None or pieces_of(word, made[0]) == pieces_of(word, made[1]):
                continue
            merge = next(side[number] for side in made if number < len(side))
            ranks = [side.get(merge) for side in self._ranks]
            if ranks[0] == ranks[1]:  # the other side makes another one before it
                merge = made[1][number]
                ranks = [side.get(merge) for side in self._ranks]
            shown = f"{merge[0]!r} + {merge[1]!r}"
            places = ["absent" if rank is None else f"no. {rank + 1}" for rank in ranks]
            orte = ["无" if rank is None else f"第 {rank + 1} 条" for rank in ranks]
            return Text(
                f"merge {shown}: {places[0]} / {places[1]}", f"merge {shown}：{orte[0]} / {orte[1]}"
            )
        return None


def normalised(tokenizer: Tokenizer, text: str) -> str:
    """Return what the normaliser makes of a text."""
    step = tokenizer.normalizer
    return text if step is None else str(step.normalize_str(text))


def pre_tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the words that merges do not cross."""
    step = tokenizer.pre_tokenizer
    return [text] if step is None else [word for word, _ in step.pre_tokenize_str(text)]


def first_difference(reference: Sequence[object], candidate: Sequence[object]) -> int | None:
    """Return the first place at which two sequences differ; None where they are equal."""
    pairs: Iterator[tuple[object, object]] = zip_longest(reference, candidate, fillvalue=_END)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), None)


_END = object()


def merges_made(word: str, ranks: _Ranks) -> list[Merge]:
    """Return the merges of one word in the order in which byte pair encoding makes them."""
    pieces = list(word)
    made = []
    while len(pieces) > 1:
        pairs = list(pairwise(pieces))
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        at = pairs.index(best)
        pieces[at : at + 2] = ["".join(best)]
        made.append(best)
    return made


def pieces_of(word: str, merges: Sequence[Merge]) -> list[str]:
    """Return what merges leave of a word, made one after the other at their first place."""
    pieces = list(word)
    for merge in merges:
        at = list(pairwise(pieces)).index(merge)
        pieces[at : at + 2] = ["".join(merge)]
    return pieces
