"""encode(decode(ids)): what comes back, what does not, and what that says of a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.finding import Severity, Side
from align.rollout.retokenise import RoundTrip, breaks_prefix, round_trip
from align.rollout.retokenise_findings import drift_findings

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra torch")


def bpe() -> Any:
    """Make the tokenizer of the field report: bytes, and merges up to "hello"."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    for token in ("he", "ll", "llo", "hello", "<|end|>"):
        vocabulary[token] = len(vocabulary)
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    return made


TOKENIZER = bpe()
EOS = TOKENIZER.token_to_id("<|end|>")


def ids(*tokens: str) -> list[int]:
    return [TOKENIZER.token_to_id(token) for token in tokens]


def test_canonical_responses_come_back() -> None:
    responses = [ids("hello", "<|end|>"), ids("he", "Ġ", "hello"), []]
    found = round_trip(responses, TOKENIZER)
    assert (found.num_rows, found.num_tokens, found.num_drifted) == (3, 5, 0)


def test_a_word_sampled_in_pieces_drifts_at_its_first_piece() -> None:
    responses = [ids("hello"), ids("hello", "Ġ", "he", "l", "lo"[0], "o", "<|end|>")]
    found = round_trip(responses, TOKENIZER)
    assert found.num_drifted == 1
    (drift,) = found.drifts
    assert (drift.row, drift.position) == (1, 2)
    assert drift.sampled_tokens[:2] == ("he", "l")
    assert drift.encoded_tokens[:2] == ("hello", "<|end|>")
    assert "hello" in drift.text


def test_half_a_character_is_no_drift_but_broken_text() -> None:
    first_byte = TOKENIZER.encode("中").ids[:1]
    found = round_trip([first_byte], TOKENIZER)
    assert (found.num_drifted, found.num_broken_text) == (0, 1)


def test_ids_beyond_the_vocabulary_are_counted_and_the_rest_is_checked() -> None:
    found = round_trip([[10**6], [-1, 2], [2**40], ids("he", "llo")], TOKENIZER)
    assert (found.num_rows, found.num_beyond, found.num_drifted) == (4, 3, 1)


def test_text_that_encodes_to_more_tokens_than_were_allowed_is_the_tell_tale() -> None:
    """A response of 2 tokens whose text, once encoded by other merges, has 3."""
    fewer = bpe()
    fewer.model = tokenizers.models.BPE(
        TOKENIZER.get_vocab(with_added_tokens=False), [("h", "e"), ("l", "l")]
    )
    found = round_trip([ids("hello", "hello")], fewer, max_response_length=2)
    assert (found.num_drifted, found.num_longer) == (1, 1)


@given(st.lists(st.text(max_size=30), max_size=6))
def test_encoded_text_always_comes_back(texts: list[str]) -> None:
    encoded = [e.ids for e in TOKENIZER.encode_batch(texts, add_special_tokens=False)]
    found = round_trip(encoded, TOKENIZER)
    assert found.num_drifted == 0
    assert found.num_rows == len(texts)


@given(st.lists(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=20)))
def test_every_row_is_counted_once(responses: list[list[int]]) -> None:
    """The slow way, one row at a time, is the second source."""
    drifted = broken = 0
    for response in responses:
        text = TOKENIZER.decode(response, skip_special_tokens=False)
        if TOKENIZER.encode(text, add_special_tokens=False).ids != response:
            broken += "\ufffd" in text
            drifted += "\ufffd" not in text
    found = round_trip(responses, TOKENIZER)
    assert (found.num_drifted, found.num_broken_text) == (drifted, broken)


def test_a_conversation_that_merges_across_a_turn_breaks_its_prefix() -> None:
    assert breaks_prefix(["he", "he llo", "he llo hello"], TOKENIZER) is None
    assert breaks_prefix(["x", "xhe", "xhello"], TOKENIZER) == (2, 1)


def trips(reference: tuple[int, int], candidate: tuple[int, int]) -> dict[Side, RoundTrip]:
    sides = zip((Side.REFERENCE, Side.CANDIDATE), (reference, candidate), strict=True)
    return {side: RoundTrip(num_rows=n, num_drifted=k) for side, (k, n) in sides}


SOURCES = {Side.REFERENCE: "a", Side.CANDIDATE: "b"}


def test_drift_on_both_sides_is_only_mentioned() -> None:
    (finding,) = drift_findings(trips((5, 100), (7, 100)), SOURCES)
    assert finding.severity is Severity.INFO
    assert "5/100 in the reference, 7/100 in the candidate" in finding.title.en


def test_no_drift_at_all_is_silent() -> None:
    assert drift_findings(trips((0, 100), (0, 100)), SOURCES) == []


@pytest.mark.parametrize(("num_rows", "suspected"), [(90, False), (91, True)])
def test_a_side_without_drift_is_suspect_once_chance_is_below_a_hundredth(
    num_rows: int, suspected: bool
) -> None:
    """0.95 ** 89 = 0.0104 and 0.95 ** 90 = 0.0099, by hand; the rate is 5 of 100."""
    (finding,) = drift_findings(trips((5, 100), (0, num_rows - 1)), SOURCES)
    assert (finding.severity is Severity.WARNING) is suspected
    assert ("made from text" in finding.why.en) is suspected
