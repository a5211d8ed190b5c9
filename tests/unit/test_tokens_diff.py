"""``align tokens diff`` on plain dumps: each planted fault is named, its clean twin is silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from align.cli.main import cli
from align.rollout.token_pairs import How, pair_rows
from align.rollout.token_row import TokenRow
from align.rollout.token_spans import spans

PAD, EOS, P, R = 0, 9, 24, 24
Arrays = dict[str, npt.NDArray[Any]]
Rows = list[tuple[list[int], list[int]]]

SYSTEM = [1, 50, 51, 52, 53, 2]
QUESTIONS = [[1, 60, 61, 70 + n, 62, 2, 1, 63] for n in range(4)]
ANSWERS = [[100 + 20 * n + i for i in range(17 + n)] + [EOS] for n in range(4)]
ROWS: Rows = [(SYSTEM + q, a) for q, a in zip(QUESTIONS, ANSWERS, strict=True)]


def batch(rows: Rows, p: int = P, r: int = R, pad: int = PAD) -> Arrays:
    """Pad as verl does: prompts on the left, responses on the right."""
    ids, seen = np.full((len(rows), p + r), pad), np.zeros((len(rows), p + r), np.int64)
    for i, (prompt, response) in enumerate(rows):
        ids[i, p - len(prompt) : p + len(response)] = prompt + response
        seen[i, p - len(prompt) : p + len(response)] = 1
    return {
        "input_ids": ids,
        "attention_mask": seen,
        "position_ids": np.maximum(seen.cumsum(1) - 1, 0),
        "responses": ids[:, p:].copy(),
        "response_mask": seen[:, p:].copy(),
    }


def save(folder: Path, arrays: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "batch.npz"
    np.savez(path, allow_pickle=False, **arrays)
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["tokens", "diff", *map(str, arguments)])


def diff(tmp_path: Path, reference: Arrays, candidate: Arrays, *options: object) -> dict[str, Any]:
    ours, theirs = save(tmp_path / "ref", reference), save(tmp_path / "cand", candidate)
    done = call(ours, theirs, "--json", *options)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def ids(document: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in document["findings"]]


def against_clean(tmp_path: Path, change: Callable[[Arrays], object]) -> dict[str, Any]:
    arrays = batch(ROWS)
    change(arrays)
    return diff(tmp_path, batch(ROWS), arrays)


def test_equal_dumps_are_aligned(tmp_path: Path) -> None:
    document = diff(tmp_path, batch(ROWS), batch(ROWS))
    assert ids(document) == []
    assert document["rungs"][0]["status"] == "aligned"
    assert "4 with equal ids" in document["rungs"][0]["summary"]


def test_rows_in_another_order_and_padding_are_aligned(tmp_path: Path) -> None:
    other = batch(ROWS[::-1], p=P + 5, r=R + 3, pad=99)
    assert ids(diff(tmp_path, batch(ROWS), other)) == []


def test_a_missing_system_turn_is_one_span_in_every_prompt(tmp_path: Path) -> None:
    rows = [(q, a) for q, a in zip(QUESTIONS, ANSWERS, strict=True)]
    document = diff(tmp_path, batch(ROWS), batch(rows))
    assert ids(document) == ["tokens.prompt_differs"]
    title = document["findings"][0]["title"]
    assert "4 of 4 rows" in title
    assert "the candidate lacks 6 tokens" in title and "in each of them" in title


def test_other_questions_are_not_taken_for_a_template(tmp_path: Path) -> None:
    others = [[1, 60, 61, 80 + n, 62, 2, 1, 63] for n in range(4)]
    answers = [[300 + 30 * n + i for i in range(20)] + [EOS] for n in range(4)]
    rows = [(SYSTEM + q, a) for q, a in zip(others, answers, strict=True)]
    document = diff(tmp_path, batch(ROWS), batch(rows))
    assert (ids(document), document["rungs"][0]["status"]) == ([], "missing")
    assert "align data diff" in document["rungs"][0]["summary"]


def test_equal_prompts_show_that_near_ones_are_other_questions(tmp_path: Path) -> None:
    ours = [[1, 60, 61, 70 + n, 62, 2, 1, 63] for n in range(6)]
    theirs = [ours[0], *([1, 60, 61, 90, 64 + n, 62, 2, 1, 63] for n in range(5))]
    dumps = [
        batch([(p, list(range(at + 40 * n, at + 40 * n + 17))) for n, p in enumerate(prompts)])
        for prompts, at in ((ours, 300), (theirs, 900))
    ]
    document = diff(tmp_path, *dumps)
    assert ids(document) == []
    assert "1 rows paired" in document["rungs"][0]["summary"]
    assert document["rungs"][0]["status"] == "undecided"


def test_other_samples_of_the_same_prompts_are_no_difference(tmp_path: Path) -> None:
    rows = [(p, [300 + 40 * n + i for i in range(15)] + [EOS]) for n, (p, _) in enumerate(ROWS)]
    document = diff(tmp_path, batch(ROWS), batch(rows))
    assert ids(document) == []
    assert "4 with other samples" in document["rungs"][0]["summary"]


def test_stripped_eos_is_missing_on_its_side(tmp_path: Path) -> None:
    rows = [(p, r[:-1]) for p, r in ROWS]
    document = diff(tmp_path, batch(ROWS), batch(rows))
    assert ids(document) == ["tokens.eos_missing"]
    assert "in the candidate: 4 of 4" in document["findings"][0]["title"]
    swapped = diff(tmp_path / "swapped", batch(rows), batch(ROWS))
    assert "in the reference: 4 of 4" in swapped["findings"][0]["title"]


def test_an_eos_in_place_of_a_cut_responses_last_token_is_fake(tmp_path: Path) -> None:
    cut = [list(range(400 + 50 * n, 400 + 50 * n + R)) for n in range(2)]
    rows = [*ROWS[:2], (ROWS[2][0], cut[0]), (ROWS[3][0], cut[1])]
    changed = [(p, [*r[:-1], EOS]) for p, r in rows]
    document = diff(tmp_path, batch(rows), batch(changed))
    assert ids(document) == ["tokens.eos_fake"]
    assert "in the candidate: 2 of 4" in document["findings"][0]["title"]


def samples(*, end: int | None, start: int = 1000) -> Rows:
    """Answer every prompt with other tokens; ``end`` is their last, None for none."""
    tail = [] if end is None else [end]
    return [
        (p, [*range(start + 40 * n, start + 40 * n + 15), *tail]) for n, (p, _) in enumerate(ROWS)
    ]


def test_other_samples_that_all_lack_an_end_are_named(tmp_path: Path) -> None:
    document = diff(tmp_path, batch(ROWS), batch(samples(end=None)))
    assert ids(document) == ["tokens.eos_missing"]
    assert "none of 4 responses of the candidate ends with 9" in document["findings"][0]["title"]


def test_other_samples_with_another_end_are_named_with_both_ids(tmp_path: Path) -> None:
    document = diff(tmp_path, batch(samples(end=8)), batch(ROWS))
    assert ids(document) == ["tokens.eos_missing"]
    title = document["findings"][0]["title"]
    assert "ends with 8" in title and "they end with 9" in title


def test_two_samples_that_part_at_their_last_token_are_no_fake_eos(tmp_path: Path) -> None:
    """One sample stopped where the other went on and was cut: chance, among other samples."""
    shared, cut = list(range(500, 500 + R - 1)), list(range(600, 600 + R))
    ours = [*samples(end=EOS), (ROWS[0][0], [*shared, 777]), (ROWS[1][0], cut)]
    theirs = [*samples(end=EOS, start=3000), (ROWS[0][0], [*shared, EOS]), (ROWS[1][0], cut)]
    assert ids(diff(tmp_path, batch(ours), batch(theirs))) == []


def test_eos_masked_out_of_the_loss_is_missing_eos(tmp_path: Path) -> None:
    def mask(arrays: Arrays) -> None:
        arrays["response_mask"] *= arrays["responses"] != EOS

    document = against_clean(tmp_path, mask)
    assert ids(document) == ["tokens.eos_missing"]
    assert "response_mask" in document["findings"][0]["evidence"][0]["key"]


def test_single_other_tokens_are_nearly_identical_rows(tmp_path: Path) -> None:
    rows = [(p, [*r[:5], 999, *r[6:]]) for p, r in ROWS]
    document = diff(tmp_path, batch(ROWS), batch(rows))
    assert ids(document) == ["tokens.nearly_identical"]
    assert "the nearest but for 1 tokens" in document["findings"][0]["title"]


@pytest.mark.parametrize("by", [1, -1])
def test_a_shifted_mask_is_named(tmp_path: Path, by: int) -> None:
    def shift(arrays: Arrays) -> None:
        moved = np.roll(arrays["response_mask"], by, axis=1)
        moved[:, 0 if by > 0 else -1] = 0
        arrays["response_mask"] = moved

    cut = (ROWS[0][0], list(range(400, 410)))  # has no eos, so its last token is in the loss
    arrays = batch([*ROWS, cut])
    shift(arrays)
    document = diff(tmp_path, batch([*ROWS, cut]), arrays)
    assert ids(document) == ["tokens.mask_shifted"]


def test_other_masked_tokens_are_a_mask_that_differs(tmp_path: Path) -> None:
    def leave_out(arrays: Arrays) -> None:
        arrays["response_mask"][:, 3:6] = 0

    assert ids(against_clean(tmp_path, leave_out)) == ["tokens.mask_differs"]


def test_padding_inside_a_row_is_named(tmp_path: Path) -> None:
    def hide(arrays: Arrays) -> None:
        arrays["attention_mask"][:, P + 4] = 0

    assert "tokens.padding_inside" in ids(against_clean(tmp_path, hide))


def test_positions_that_count_padding_are_named(tmp_path: Path) -> None:
    def count(arrays: Arrays) -> None:
        arrays["position_ids"][:, P:] = np.arange(P, P + R)

    assert ids(against_clean(tmp_path, count)) == ["tokens.position_ids_left_padding"]


def test_positions_with_a_constant_offset_are_only_mentioned(tmp_path: Path) -> None:
    def move(arrays: Arrays) -> None:
        arrays["position_ids"] += 3

    document = against_clean(tmp_path, move)
    assert ids(document) == ["tokens.position_ids_offset"]
    assert document["findings"][0]["severity"] == "info"


def test_positions_counted_anew_in_the_response_overlap(tmp_path: Path) -> None:
    def repeat(arrays: Arrays) -> None:
        arrays["position_ids"][:, P:] -= 1

    assert ids(against_clean(tmp_path, repeat)) == ["tokens.position_ids_duplicated"]


def test_positions_rounded_to_bfloat16_are_named(tmp_path: Path) -> None:
    long: Rows = [(list(range(100, 500)), [*range(600, 630), EOS])]
    exact = batch(long, 401, 32)
    rounded = {**exact}
    # bfloat16 has 8 significant bits: steps of 2 from 256 on; ties go to the even multiple
    halves, odd = exact["position_ids"] // 2, exact["position_ids"] % 2
    steps = np.where(exact["position_ids"] > 256, (halves + (odd & halves)) * 2, 0)
    rounded["position_ids"] = np.where(exact["position_ids"] > 256, steps, exact["position_ids"])
    assert ids(diff(tmp_path, exact, rounded)) == ["tokens.position_ids_rounded"]


def labelled(rows: Rows, *, shift: bool) -> Arrays:
    arrays = batch(rows)
    labels = np.where(arrays["attention_mask"] == 1, arrays["input_ids"], -100)
    labels[:, :P] = -100
    if shift:
        labels = np.concatenate([labels[:, 1:], np.full((len(rows), 1), -100)], axis=1)
    return {
        "input_ids": arrays["input_ids"],
        "attention_mask": arrays["attention_mask"],
        "labels": labels,
    }


@pytest.mark.parametrize("shift", [False, True])
def test_labels_are_understood_in_both_layouts(tmp_path: Path, shift: bool) -> None:
    arrays = labelled(ROWS, shift=shift)
    assert ids(diff(tmp_path, arrays, arrays)) == []


def test_labels_shifted_on_one_side_are_named(tmp_path: Path) -> None:
    document = diff(tmp_path, labelled(ROWS, shift=False), labelled(ROWS, shift=True))
    assert ids(document) == ["tokens.labels_shifted"]


def test_an_eos_label_that_a_collator_masked_as_padding_is_missing(tmp_path: Path) -> None:
    """trl#1623: pad is eos, and every label of the pad id becomes -100."""
    arrays = labelled(ROWS, shift=False)
    arrays["labels"][arrays["input_ids"] == EOS] = -100
    document = diff(tmp_path, labelled(ROWS, shift=False), arrays)
    assert ids(document) == ["tokens.eos_missing"]
    assert "labels" in document["findings"][0]["evidence"][0]["key"]


def test_labels_of_other_tokens_are_named(tmp_path: Path) -> None:
    arrays = labelled(ROWS, shift=False)
    arrays["labels"][:, P + 2] = 7
    document = diff(tmp_path, labelled(ROWS, shift=False), arrays)
    assert ids(document) == ["tokens.labels_differ"]


def test_answers_called_labels_are_not_training_labels(tmp_path: Path) -> None:
    arrays = batch(ROWS)
    arrays["labels"] = np.full_like(arrays["input_ids"], 77)
    assert ids(diff(tmp_path, batch(ROWS), arrays)) == []


def packed(rows: Rows, *, boundaries: list[int] | None = None) -> Arrays:
    whole = [p + r for p, r in rows]
    ends = np.cumsum([0, *map(len, whole)])
    return {
        "input_ids": np.array([[i for row in whole for i in row]]),
        "position_ids": np.array([[i for row in whole for i in range(len(row))]]),
        "cu_seqlens": np.array(ends if boundaries is None else boundaries, np.int32),
    }


def test_packed_sequences_are_taken_apart(tmp_path: Path) -> None:
    document = diff(tmp_path, packed(ROWS), batch(ROWS))
    assert "4 rows paired" in document["rungs"][0]["summary"]
    assert ids(diff(tmp_path / "same", packed(ROWS), packed(ROWS))) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: [b[0], b[1] + 1, *b[2:]],
        lambda b: [b[0], *b[2:]],
        lambda b: b[:-1],
        lambda b: [0, b[2] // 2, *b[1:]],
    ],
)
def test_wrong_packed_boundaries_are_named(
    tmp_path: Path, spoil: Callable[[list[int]], list[int]]
) -> None:
    right = np.cumsum([0, *(len(p) + len(r) for p, r in ROWS)]).tolist()
    document = diff(tmp_path, packed(ROWS), packed(ROWS, boundaries=spoil(right)))
    assert "tokens.packed_boundaries" in ids(document)


def test_padding_after_the_last_packed_sequence_is_clean(tmp_path: Path) -> None:
    arrays = packed(ROWS)
    arrays["input_ids"] = np.pad(arrays["input_ids"], ((0, 0), (0, 6)))
    arrays["position_ids"] = np.pad(arrays["position_ids"], ((0, 0), (0, 6)))
    assert ids(diff(tmp_path, arrays, arrays)) == []


def test_negative_ids_are_beyond_any_vocabulary(tmp_path: Path) -> None:
    def spoil(arrays: Arrays) -> None:
        arrays["input_ids"][1, P + 2] = arrays["responses"][1, 2] = -5

    assert "tokens.ids_beyond_vocabulary" in ids(against_clean(tmp_path, spoil))


def test_a_row_is_shown_whole_in_the_roles_of_its_tokens(tmp_path: Path) -> None:
    document = diff(tmp_path, batch(ROWS), batch(ROWS), "--row", 2)
    (table,) = document["rungs"][0]["tables"]
    keys = [column["key"] for column in table["columns"]]
    role, number = keys.index("reference_role"), keys.index("reference_id")
    prompt, response = ROWS[2]
    assert [row[number] for row in table["rows"]][:-1] == prompt + response
    roles = [row[role]["en"] for row in table["rows"]]
    assert roles == ["prompt"] * len(prompt) + ["response"] * (len(response) - 1) + ["eos", "pad"]


def test_the_terminal_gets_colours_on_request_only(tmp_path: Path) -> None:
    path = save(tmp_path, batch(ROWS))
    plain, coloured = call(path, path, "--no-color"), call(path, path, "--color")
    assert "\x1b[" not in plain.stdout and "\x1b[" in coloured.stdout
    assert plain.exit_code == 0


def test_exit_codes_tell_a_difference_and_a_lack_of_tokens(tmp_path: Path) -> None:
    rows = [(p, r[:-1]) for p, r in ROWS]
    ours, theirs = save(tmp_path / "a", batch(ROWS)), save(tmp_path / "b", batch(rows))
    assert call(ours, theirs).exit_code == 1
    assert call(ours, theirs, "--fail-on", "never").exit_code == 0
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step":1,"data":{"actor/lr":1e-6}}\n' * 3)
    nothing = call(ours, log)
    assert nothing.exit_code == 3
    assert "no token ids in candidate" in nothing.stdout


def test_a_step_or_row_that_is_not_there_is_an_error_that_lists_what_is(tmp_path: Path) -> None:
    path = save(tmp_path, batch(ROWS))
    done = CliRunner().invoke(cli, ["tokens", "diff", str(path), str(path), "--row", "9"])
    assert "give one of 0, 1, 2, 3" in str(done.exception)


def token_row(prompt: list[int], response: list[int], number: int = 0) -> TokenRow:
    ids = np.array(prompt + response, np.int64)
    return TokenRow("x", number, 1, ids, np.ones(len(ids), np.bool_), split=len(prompt))


sequences = st.lists(st.integers(0, 30), max_size=40).map(tuple)


@given(sequences, sequences)
def test_spans_turn_one_sequence_into_the_other(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    made: list[int] = []
    at = 0
    for span in spans(a, b):
        made += a[at : span.start]
        assert a[span.start : span.start + len(span.reference)] == span.reference
        assert len(made) == span.other_start
        made += span.candidate
        at = span.start + len(span.reference)
    assert (*made, *a[at:]) == b
    assert bool(spans(a, b)) == (a != b)


@given(st.lists(st.tuples(sequences, sequences), max_size=12), st.randoms())
def test_rows_that_were_shuffled_find_their_equals(
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]], random: Any
) -> None:
    ours = [token_row(list(p), list(r), n) for n, (p, r) in enumerate(rows)]
    theirs = list(ours)
    random.shuffle(theirs)
    paired = pair_rows(ours, theirs)
    assert len(paired.pairs) == len(rows)
    assert all(pair.how is How.TOKENS for pair in paired.pairs)
    assert all(p.reference.tokens == p.candidate.tokens for p in paired.pairs)
