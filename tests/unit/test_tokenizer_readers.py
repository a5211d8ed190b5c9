"""SentencePiece, tiktoken, slot templates and weight headers, as their makers write them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import AlignError
from dumps.readers.embedding_rows import embedding_rows
from dumps.readers.sentencepiece_model import fields, parse_sentencepiece, read_sentencepiece
from dumps.readers.slot_templates import read_slot_templates
from dumps.readers.tokenizer_content import read_tiktoken
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tokenizer_check.content import read_content
from tokenizer_check.load import load, merges_of_pieces
from tokenizer_check.rung import compare

PIECES = (
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    ("▁a", -1.0, 1),
    ("bc", -2.0, 1),
    ("▁abc", -3.0, 1),
    ("▁", -4.0, 1),
    ("a", -5.0, 1),
    ("b", -6.0, 1),
    ("c", -7.0, 1),
)


def model(kind: int = 2, pieces: tuple[tuple[str, float, int], ...] = PIECES) -> Any:
    """Write a model with the protobuf classes that transformers has."""
    schema = pytest.importorskip("transformers.utils.sentencepiece_model_pb2_new")
    made = schema.ModelProto()
    for text, score, type in pieces:
        piece = made.pieces.add()
        piece.piece, piece.score, piece.type = text, score, type
    made.trainer_spec.model_type = kind
    made.trainer_spec.unk_id, made.trainer_spec.pad_id = 0, -1
    made.normalizer_spec.name = "identity"
    made.normalizer_spec.remove_extra_whitespaces = False
    return made


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_sentencepiece_model_is_read_as_protobuf_writes_it(tmp_path: Path) -> None:
    made = model()
    read = read_sentencepiece(write(tmp_path / "x.bin", made.SerializeToString()))
    assert tuple((p.text, p.score, p.type) for p in read.pieces) == PIECES
    assert (read.kind, read.byte_fallback) == ("bpe", False)
    assert read.roles == {"unk": 0, "bos": 1, "eos": 2, "pad": -1}
    assert read.normalizer["add_dummy_prefix"] is True
    assert read.normalizer["remove_extra_whitespaces"] is False
    found = discover([tmp_path]).artifacts
    assert [artifact.format for artifact in found] == ["sentencepiece_model"]


def test_merges_of_a_sentencepiece_model_are_those_that_transformers_makes() -> None:
    convert = pytest.importorskip("transformers.convert_slow_tokenizer")
    read = parse_sentencepiece(model().SerializeToString())
    vocabulary = {text: number for number, (text, _, _) in enumerate(PIECES)}
    scores = {text: score for text, score, type in PIECES if type == 1}
    expected = convert.generate_merges(vocabulary, scores)
    assert list(merges_of_pieces(read)) == [("▁", "a"), ("b", "c"), ("▁a", "bc")] == expected


@pytest.mark.parametrize("kind", [1, 2])
def test_a_sentencepiece_model_encodes(tmp_path: Path, kind: int) -> None:
    pytest.importorskip("tokenizers")
    write(tmp_path / "tokenizer.model", model(kind).SerializeToString())
    tokenizer: Any = load(read_content(RunData(discover([tmp_path]))))
    assert tokenizer.encode("abc a", add_special_tokens=False).tokens == ["▁abc", "▁a"]
    assert tokenizer.encode("</s>", add_special_tokens=False).ids == [2]


def test_a_piece_under_another_id_is_named_between_two_sentencepiece_models(tmp_path: Path) -> None:
    swapped = (*PIECES[:8], PIECES[9], PIECES[8])
    config = b'{"eos_token": "</s>", "model_max_length": 9, "tokenizer_class": "LlamaTokenizer"}'
    for name, pieces in (("a", PIECES), ("b", swapped), ("c", PIECES)):
        write(tmp_path / name / "tokenizer.model", model(2, pieces).SerializeToString())
        write(tmp_path / name / "tokenizer_config.json", config)
    runs = {name: RunData(discover([tmp_path / name])) for name in "abc"}
    found = compare(runs["a"], runs["b"]).findings
    assert found[0].id == "tokenizer.vocabulary" and "token 'b' has id 8" in found[0].title.en
    assert compare(runs["a"], runs["c"]).findings == ()


@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_any_bytes_are_a_sentencepiece_model_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int
) -> None:
    whole = model().SerializeToString()
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.model"
    for content in (data, whole[:cut], whole[:cut] + data):
        path.write_bytes(content)
        try:
            assert read_sentencepiece(path).pieces
        except AlignError as error:
            assert str(path) in str(error)


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 2**63)), max_size=20))
def test_numbers_of_any_size_are_read_back(pairs: list[tuple[int, int]]) -> None:
    def varint(number: int) -> bytes:
        low, rest = number & 0x7F, number >> 7
        return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])

    data = b"".join(varint(number << 3) + varint(value) for number, value in pairs)
    assert list(fields(data)) == pairs


def test_a_tiktoken_file_is_the_vocabulary_of_the_same_vocab_json(tmp_path: Path) -> None:
    # what byte-level vocabularies write: a space is Ġ, a line break Ċ, the two bytes of é are Ã©
    tokens = {b" ": "Ġ", b"\n": "Ċ", b"a": "a", "é".encode(): "Ã©", b"\xad": "Ń", b"\x00": "Ā"}
    tokens |= {f"w{n}".encode(): f"w{n}" for n in range(120)}
    lines = [f"{base64.b64encode(raw).decode()} {rank}" for rank, raw in enumerate(tokens)]
    path = write(tmp_path / "a" / "qwen.tiktoken", "\n".join(lines).encode())
    expected = {text: rank for rank, text in enumerate(tokens.values())}
    assert read_tiktoken(path) == expected
    vocabulary = json.dumps(expected, ensure_ascii=False).encode()
    write(tmp_path / "b" / "vocab.json", vocabulary)
    runs = [RunData(discover([tmp_path / name])) for name in "ab"]
    assert [run.run.artifacts[0].format for run in runs] == ["tiktoken", "hf_vocabulary"]
    assert compare(*runs).findings == ()
    path.write_text("\n".join(lines[:60] + lines[61:]), encoding="utf-8")
    finding = compare(RunData(discover([tmp_path / "a"])), runs[1]).findings[0]
    assert (finding.id, finding.reference, finding.candidate) == ("tokenizer.vocabulary", None, 60)


def test_a_damaged_tiktoken_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tiktoken", b"YQ== 0\nno base64 1\n")
    with pytest.raises(AlignError, match=r"x\.tiktoken"):
        read_tiktoken(path)


def test_slot_templates_are_read_by_name(tmp_path: Path) -> None:
    stated = {
        "name": "qwen_r1",
        "format_user": {"slots": ["<|im_start|>user\n{{content}}<|im_end|>\n"]},
        "format_system": {"slots": ["S {{content}}\n"]},
        "format_prefix": {"slots": [["bos_token"]]},
        "default_system": "Be brief.",
        "stop_words": ["<|im_end|>"],
        "replace_eos": True,
    }
    path = write(tmp_path / "templates.json", json.dumps([stated, {"name": "empty"}]).encode())
    assert [a.format for a in discover([tmp_path]).artifacts] == ["mindspeed_rl_templates"]
    templates = read_slot_templates(path)
    assert (templates["qwen_r1"].stop_words, templates["qwen_r1"].replace_eos) == (
        ("<|im_end|>",),
        True,
    )
    assert templates["empty"].prompt("q", None, {}) == "q"
    assert templates["qwen_r1"].prompt("q", None, {"bos_token": "<s>"}) == (
        "<s>S Be brief.\n<|im_start|>user\nq<|im_end|>\n"
    )
    path.write_text('[{"format_user": {"slots": ["{{content}}"]}}]')
    with pytest.raises(AlignError, match=r"templates\.json"):
        read_slot_templates(path)


def test_rows_of_the_embedding_are_read_from_the_header_alone(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    tensors = {
        "lm_head.weight": numpy.zeros((9, 2), numpy.float32),
        "model.embed_tokens.weight": numpy.zeros((10, 2), numpy.float32),
        "model.norm.weight": numpy.zeros(2, numpy.float32),
    }
    safetensors.save_file(tensors, path)
    assert list(embedding_rows(path).items()) == [
        ("model.embed_tokens.weight", 10),
        ("lm_head.weight", 9),
    ]
    path.write_bytes(path.read_bytes()[:40])
    assert embedding_rows(path) == {}
