"""Ids rebuilt from text: which are exact, which follow from rules, and which nobody can know."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.text import Text
from align.rollout import rebuild as module
from align.rollout.rebuild import Mark, Rules, TextRow, rebuild
from align.rollout.rebuild_chat import MERGED, REWRITTEN, rebuild_chat

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra torch")

SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]


def bpe() -> Any:
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    for token in ("he", "ll", "llo", "hello"):
        vocabulary[token] = len(vocabulary)
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    return made


TOKENIZER = bpe()
END = TOKENIZER.token_to_id("<|end|>")
LIMIT = 6


def render(conversations: Sequence[Sequence[Mapping[str, Any]]]) -> list[str | None]:
    return [
        "".join(f"<|{m['role']}|>\n{m['content']}<|end|>" for m in messages) + "<|assistant|>\n"
        for messages in conversations
    ]


RULES = Rules(END, LIMIT, render=render, special=frozenset(SPECIAL))
MESSAGES = [{"role": "user", "content": "hello"}]
STRIPPED = "\nhello\n"


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text, add_special_tokens=False).ids)


def response(text: str, rules: Rules = RULES, **known: Any) -> tuple[Any, Mark, Text]:
    (row,) = rebuild([TextRow(None, text, **known)], TOKENIZER, rules).rows
    return row.response.ids, row.response.mark, row.response.reason


def prompt(row: TextRow, rules: Rules = RULES) -> tuple[Any, Mark, Text]:
    (made,) = rebuild([row], TOKENIZER, rules).rows
    return made.prompt.ids, made.prompt.mark, made.prompt.reason


def test_recorded_ids_are_exact_even_where_the_text_says_otherwise() -> None:
    (row,) = rebuild(
        [TextRow("x", "y", prompt_ids=(1,), response_ids=(2, 3))], TOKENIZER, RULES
    ).rows
    assert (row.prompt.ids, row.response.ids, row.mark) == ((1,), (2, 3), Mark.EXACT)


def test_a_response_that_ended_by_itself_gets_its_eos_back() -> None:
    assert response("hello hello") == ((*ids("hello hello"), END), Mark.REBUILT, module.STOPPED)


def test_a_response_cut_at_the_limit_gets_none() -> None:
    text = "a b cd"
    assert len(ids(text)) == LIMIT
    assert response(text) == (ids(text), Mark.REBUILT, module.CUT)


def test_the_finish_reason_decides_where_it_was_recorded() -> None:
    assert response("a b cd", finish_reason="stop")[0] == (*ids("a b cd"), END)
    assert response("hello", finish_reason="length")[1:] == (Mark.AMBIGUOUS, module.OTHER_LENGTH)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("abcdefgh", module.LONGER),
        ("abcde", module.NEAR_LIMIT),
        ("caf\ufffd", module.BROKEN_TEXT),
        ("lone \ud83d", module.BROKEN_TEXT),
    ],
)
def test_what_nobody_can_know_is_ambiguous_and_says_why(text: str, reason: Text) -> None:
    assert response(text)[1:] == (Mark.AMBIGUOUS, reason)


def test_without_limit_and_reason_eos_is_a_guess() -> None:
    assert response("hello", Rules(END, None))[1:] == (Mark.AMBIGUOUS, module.NO_LIMIT)


def test_a_recorded_length_tells_another_tokenisation() -> None:
    assert response("hello", num_response_tokens=2)[1] is Mark.REBUILT
    assert response("hello", num_response_tokens=3)[1:] == (Mark.AMBIGUOUS, module.OTHER_LENGTH)


def test_lost_role_markers_come_back_from_the_data_set_row() -> None:
    (text,) = render([MESSAGES])
    assert text is not None
    row = TextRow(STRIPPED, "x", messages=MESSAGES)
    assert prompt(row) == (ids(text), Mark.REBUILT, module.FROM_ROW)
    assert ids(text)[0] == TOKENIZER.token_to_id("<|user|>")


def test_the_row_of_another_question_is_noticed() -> None:
    row = TextRow("\nother\n", "x", messages=MESSAGES)
    assert prompt(row)[1:] == (Mark.AMBIGUOUS, module.OTHER_ROW)


def test_without_a_row_lost_markers_stay_lost() -> None:
    assert prompt(TextRow(STRIPPED, "x"))[1:] == (Mark.AMBIGUOUS, module.LOST)
    assert prompt(TextRow(None, "x"))[:2] == (None, Mark.AMBIGUOUS)
    kept = "<|user|>\nhello<|end|>"
    assert prompt(TextRow(kept, "x")) == (ids(kept), Mark.REBUILT, module.KEPT_MARKERS)


def test_rows_are_counted_by_the_less_sure_of_both_halves() -> None:
    rows = [
        TextRow("x", "y", prompt_ids=(1,), response_ids=(2,)),
        TextRow("x", "hello", prompt_ids=(1,)),
        TextRow(STRIPPED, "hello"),
    ]
    made = rebuild(rows, TOKENIZER, RULES)
    assert [made.count(mark) for mark in Mark] == [1, 1, 1]


@given(st.lists(st.text(alphabet="helo ab", max_size=9), max_size=5), st.integers(3, 8))
def test_what_is_marked_rebuilt_is_what_a_canonical_policy_sampled(
    texts: list[str], limit: int
) -> None:
    """The policy samples canonical ids and stops, or is cut at the limit; its text is dumped."""
    sampled = [(*ids(text), END)[:limit] for text in texts]
    dumped = [TOKENIZER.decode(list(s), skip_special_tokens=True) for s in sampled]
    made = rebuild([TextRow(None, t) for t in dumped], TOKENIZER, Rules(END, limit)).rows
    for row, expected in zip(made, sampled, strict=True):
        if row.response.mark is Mark.REBUILT:
            assert row.response.ids == expected


def test_the_prompts_of_a_real_run_are_rebuilt_from_its_data_set(reference_runs: Path) -> None:
    """What verl gave its agent loop as prompt_ids is the second source."""
    transformers = pytest.importorskip("transformers", reason="needs the extra torch")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = reference_runs / "tiny_model_tokenizer_data"
    loaded = transformers.AutoTokenizer.from_pretrained(folder / "model")
    asked = parquet.read_table(folder / "train.parquet").column("prompt").to_pylist()
    lines = (reference_runs / "agentloop_dump_tokens.jsonl").read_text().splitlines()
    dumped = [json.loads(line) for line in lines]
    tokenizer = loaded.backend_tokenizer

    def rendered(conversations: Any) -> list[str | None]:
        return [
            loaded.apply_chat_template(c, tokenize=False, add_generation_prompt=True)
            for c in conversations
        ]

    rows = [
        TextRow(
            tokenizer.decode(d["prompt_ids"], skip_special_tokens=True),
            tokenizer.decode(d["response_ids"], skip_special_tokens=True),
            messages=asked[int(d["key"].split(":")[1])],
        )
        for d in dumped
    ]
    made = rebuild(rows, tokenizer, Rules(loaded.eos_token_id, 16, render=rendered))
    assert all(row.prompt.mark is Mark.REBUILT for row in made.rows)
    assert [row.prompt.ids for row in made.rows] == [tuple(d["prompt_ids"]) for d in dumped]
    sure = [
        (row.response.ids, tuple(d["response_ids"]))
        for row, d in zip(made.rows, dumped, strict=True)
        if row.response.mark is Mark.REBUILT
    ]
    assert all(ours == theirs for ours, theirs in sure)


def turns(conversations: Sequence[Sequence[Mapping[str, Any]]]) -> list[str | None]:
    return ["".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in c) for c in conversations]


CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "he"}]
MORE = [{"role": "user", "content": "llo"}, {"role": "assistant", "content": "hello"}]


def test_a_conversation_that_only_appends_gives_ids_and_a_mask() -> None:
    made = rebuild_chat(CHAT[:1], [*CHAT[1:], *MORE], TOKENIZER, turns)
    assert made.mark is Mark.REBUILT and made.ids is not None
    trained = TOKENIZER.decode([i for i, m in zip(made.ids, made.mask, strict=True) if m], False)
    assert trained == "<|assistant|>he<|end|><|assistant|>hello<|end|>"


def test_a_template_that_rewrites_earlier_turns_is_named() -> None:
    def forgetful(conversations: Any) -> list[str | None]:
        """Drop what an assistant thought once another turn follows, as reasoning models do."""
        return [
            "".join("" if m["role"] == "assistant" and m is not c[-1] else m["content"] for m in c)
            for c in conversations
        ]

    made = rebuild_chat(CHAT[:1], [*CHAT[1:], *MORE], TOKENIZER, forgetful)
    assert (made.mark, made.reason, made.turn) == (Mark.AMBIGUOUS, REWRITTEN, 1)


def test_a_template_without_markers_lets_turns_merge() -> None:
    def bare(conversations: Any) -> list[str | None]:
        return ["".join(m["content"] for m in c) for c in conversations]

    made = rebuild_chat([{"role": "user", "content": "x"}], [CHAT[1], MORE[0]], TOKENIZER, bare)
    assert (made.reason, made.turn) == (MERGED, 1)


def test_real_verifiers_conversations_are_rebuilt_turn_by_turn(corpus: Path) -> None:
    path = corpus / "rollouts" / "verifiers_results.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        made = rebuild_chat(row["prompt"], row["completion"], TOKENIZER, turns)
        assert made.mark is Mark.REBUILT and made.ids is not None
        said = [m["content"] for m in row["completion"] if m["role"] == "assistant"]
        kept = TOKENIZER.decode(
            [i for i, m in zip(made.ids, made.mask, strict=True) if m], skip_special_tokens=True
        )
        assert kept == "".join(said)
