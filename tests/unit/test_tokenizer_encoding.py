"""Texts as both tokenizers encode them: what parts them is named, the clean twin is silent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import MissingPackageError
from align.core.finding import Finding, Severity
from align.core.rung import RungResult
from align.core.text import Text
from dumps.readers.tokenizer_content import Merge
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tokenizer_check.content import read_content
from tokenizer_check.encoding import first_difference, merges_made, pieces_of
from tokenizer_check.load import load
from tokenizer_check.rung import compare
from tokenizer_check.sample_texts import FIXED, sample

pytest.importorskip("tokenizers")

_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
_LETTERS = [chr(c) for c in range(0x21, 0x7F)] + ["Ġ", "Ċ", "ĉ", "č"]
_MERGES = [
    ("h", "e"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("l", "o"),
    ("2", "0"),
    ("20", "2"),
]  # ids 98 to 104, after 94 printable characters and 4 of white space
WHOLE: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [{"id": 500, "content": "<|im_end|>", "special": True, **_FLAGS}],
    "normalizer": None,
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+|[^\s\p{L}\p{N}]+"},
                "behavior": "Isolated",
                "invert": False,
            },
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
        ],
    },
    "post_processor": None,
    "decoder": {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    },
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {
            text: number
            for number, text in enumerate([*_LETTERS, *("".join(merge) for merge in _MERGES)])
        },
        "merges": [list(merge) for merge in _MERGES],
    },
}
CONFIG = {"eos_token": "<|im_end|>", "model_max_length": 8, "tokenizer_class": "X"}


def run(folder: Path, whole: dict[str, Any], *prompts: str) -> RunData:
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    rows = [{"input": text, "output": "y", "score": 1.0, "step": 1} for text in prompts]
    if rows:
        (folder / "1.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return RunData(discover([folder]))


def compared(tmp_path: Path, edit: Callable[[dict[str, Any]], object], *prompts: str) -> RungResult:
    copy = deepcopy(WHOLE)
    edit(copy)
    return compare(run(tmp_path / "a", WHOLE, *prompts), run(tmp_path / "b", copy))


def weights(result: RungResult) -> dict[str, Severity]:
    return {finding.id: finding.severity for finding in result.findings}


def the(result: RungResult, id: str) -> Finding:
    return next(finding for finding in result.findings if finding.id == id)


def rows(result: RungResult) -> dict[str, tuple[object, ...]]:
    table = next(table for table in result.tables if table.id == "tokenizer.encoding")
    return {row[0].en: row[1:] for row in table.rows if isinstance(row[0], Text)}


def test_texts_of_a_tokenizer_made_of_vocabulary_and_merges_are_those_of_transformers(
    corpus: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "qwen"
    shutil.copytree(corpus / "tokenizers" / "qwen2.5-7b", folder, copy_function=shutil.copyfile)
    expected = transformers.AutoTokenizer.from_pretrained(str(folder))
    tokenizer: Any = load(read_content(RunData(discover([folder]))))
    texts = [each.text for each in FIXED]
    assert [tokenizer.encode(t, add_special_tokens=False).ids for t in texts] == [
        expected.encode(t, add_special_tokens=False) for t in texts
    ]


def test_a_lost_merge_is_responsible_for_the_first_text_that_uses_it(tmp_path: Path) -> None:
    result = compared(tmp_path, lambda j: j["model"]["merges"].remove(["hell", "o"]), "say hello")
    assert weights(result) == {
        "tokenizer.merges": Severity.ERROR,
        "tokenizer.encoding": Severity.INFO,
    }
    finding = the(result, "tokenizer.encoding")
    assert (finding.reference, finding.candidate) == ("'hello' (101)", "'hell' (100)")
    assert "merge 'hell' + 'o': no. 4 / absent" in finding.title.en
    # s, a, y, a space, then hello: one token, or two
    assert rows(result)["prompt 1 of the runs"][:3] == (5, 6, 4)


def test_the_same_tokenizer_encodes_nothing_and_is_silent(tmp_path: Path) -> None:
    result = compared(tmp_path, lambda j: None, "say hello")
    assert result.findings == ()
    assert "tokenizer.encoding" not in {table.id for table in result.tables}


def test_a_pre_tokenizer_that_cuts_digits_otherwise_is_named_with_a_text(tmp_path: Path) -> None:
    def one_digit(whole: dict[str, Any]) -> None:
        pattern = whole["pre_tokenizer"]["pretokenizers"][0]["pattern"]
        pattern["Regex"] = pattern["Regex"].replace("{1,3}", "")

    result = compared(tmp_path, one_digit)
    assert weights(result) == {
        "tokenizer.pre_tokenizer": Severity.ERROR,
        "tokenizer.encoding": Severity.INFO,
    }
    finding = the(result, "tokenizer.pre_tokenizer")
    assert "pre_tokenizer.pretokenizers[0].pattern.Regex" in finding.title.en
    assert "first text that differs (English): '45|,|Ġand' / '4|5|,'" in finding.title.en
    assert rows(result)["digits"][3:5] == ("'202' (104)", "'2' (17)")
    assert "pre-tokenizer: cuts '123' '456' / '1' '2'" in str(rows(result)["digits"][5])


def test_another_spelling_of_the_same_pre_tokenizer_is_silent(tmp_path: Path) -> None:
    def spelled(whole: dict[str, Any]) -> None:
        whole["pre_tokenizer"]["pretokenizers"][1]["trim_offsets"] = False  # offsets alone
        whole["normalizer"] = {"type": "Sequence", "normalizers": []}
        whole["model"]["dropout"] = 0.0
        del whole["model"]["byte_fallback"]
        whole["model"]["continuing_subword_prefix"] = ""

    assert compared(tmp_path, spelled).findings == ()


def test_a_normaliser_of_one_side_is_named_with_the_text_it_changes(tmp_path: Path) -> None:
    result = compared(tmp_path, lambda j: j.update(normalizer={"type": "Lowercase"}))
    finding = the(result, "tokenizer.normalizer")
    assert finding.severity is Severity.ERROR
    assert "(English): 'The larger" in finding.title.en and "'the larger" in finding.title.en
    assert finding.mechanism is not None
    assert 'normaliser: "The larger' in str(rows(result)["English"][5])


def test_a_pre_tokenizer_that_no_text_shows_is_a_warning(tmp_path: Path) -> None:
    def harmless(whole: dict[str, Any]) -> None:
        pattern = whole["pre_tokenizer"]["pretokenizers"][0]["pattern"]
        pattern["Regex"] += "|\\x{10FFFF}"

    result = compared(tmp_path, harmless)
    assert weights(result) == {"tokenizer.pre_tokenizer": Severity.WARNING}


def test_a_normaliser_that_meets_no_text_it_changes_is_a_warning(tmp_path: Path) -> None:
    replace = {"type": "Replace", "pattern": {"String": "no such text"}, "content": ""}
    result = compared(tmp_path, lambda j: j.update(normalizer=replace))
    assert weights(result) == {"tokenizer.normalizer": Severity.WARNING}


def test_a_setting_of_the_model_is_named_and_the_texts_tell_whether_it_acts(
    tmp_path: Path,
) -> None:
    result = compared(tmp_path, lambda j: j["model"].update(ignore_merges=True), "say hello")
    assert weights(result) == {"tokenizer.model": Severity.WARNING}
    lost = deepcopy(WHOLE)
    lost["model"]["merges"].remove(["hell", "o"])  # with ignore_merges, hello is a token by itself
    whole = deepcopy(lost)
    whole["model"]["ignore_merges"] = True
    acting = compare(run(tmp_path / "c", lost, "hello"), run(tmp_path / "d", whole))
    assert weights(acting) == {
        "tokenizer.model": Severity.WARNING,
        "tokenizer.encoding": Severity.ERROR,
    }
    assert "model settings" in the(acting, "tokenizer.encoding").title.en


def test_an_added_token_of_one_side_is_responsible(tmp_path: Path) -> None:
    token = {"id": 501, "content": "<think>", "special": False, **_FLAGS}
    result = compared(tmp_path, lambda j: j["added_tokens"].append(token))
    assert rows(result)["reasoning and tools"][5] == Text(
        "added token '<think>'", "附加 token '<think>'"
    )


def test_a_token_under_another_id_is_the_vocabularys(tmp_path: Path) -> None:
    def swap(whole: dict[str, Any]) -> None:
        vocabulary = whole["model"]["vocab"]
        vocabulary["!"], vocabulary["#"] = vocabulary["#"], vocabulary["!"]

    result = compared(tmp_path, swap, "wait!")
    assert rows(result)["prompt 1 of the runs"][2:5] == (4, "'!' (0)", "'!' (2)")
    assert "another id" in str(rows(result)["prompt 1 of the runs"][5])


def test_half_a_character_is_replaced_and_named(tmp_path: Path) -> None:
    half = sample(Text("x", "x"), "a\ud800b\udc00")
    assert (half.text, half.num_replaced) == ("a\ufffdb\ufffd", 2)
    result = compared(tmp_path, lambda j: j.update(normalizer={"type": "Prepend", "prepend": "z"}))
    assert "half of a character (2 lone surrogates read as U+FFFD)" in rows(result)


def test_without_the_library_the_structure_is_still_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(module: str, *, extra: str) -> None:
        raise MissingPackageError(where=module, problem="is absent", fix="install it")

    monkeypatch.setattr("tokenizer_check.load.require", absent)
    result = compared(tmp_path, lambda j: j.update(normalizer={"type": "Lowercase"}))
    assert weights(result) == {"tokenizer.normalizer": Severity.WARNING}
    assert "the package tokenizers is not installed" in result.summary.en


def test_an_end_token_that_the_post_processor_adds_is_named(tmp_path: Path) -> None:
    ends = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<|im_end|>": {"id": "<|im_end|>", "ids": [500], "tokens": ["<|im_end|>"]}
        },
    }
    result = compared(tmp_path, lambda j: j.update(post_processor=ends))
    assert weights(result) == {"tokenizer.post_processor": Severity.WARNING}
    assert "puts nothing after a text in the reference, <|im_end|> in the" in (
        the(result, "tokenizer.post_processor").title.en
    )


words = st.text(alphabet="abc", min_size=1, max_size=12)


@given(words, st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), unique=True))
def test_merges_are_made_in_the_order_of_the_library(word: str, merges: list[Merge]) -> None:
    library = pytest.importorskip("tokenizers")
    vocabulary = {text: n for n, text in enumerate([*"abc", *("".join(m) for m in merges)])}
    expected = library.Tokenizer(library.models.BPE(vocabulary, merges)).encode(word).tokens
    made = merges_made(word, {merge: rank for rank, merge in enumerate(merges)})
    assert pieces_of(word, made) == expected


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_first_difference_splits_two_lists_into_equal_and_other(
    a: list[int], b: list[int]
) -> None:
    at = first_difference(a, b)
    if at is None:
        assert a == b
    else:
        assert a[:at] == b[:at] and a[at : at + 1] != b[at : at + 1]
