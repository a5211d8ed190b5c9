"""Files of a tokenizer folder are known by content; what states special tokens is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.config_value import RawConfig
from align.core.errors import AlignError
from align.core.run import ArtifactKind
from dumps.readers.hf_tokenizer import READERS
from dumps.readers.reader import Glimpse, no_progress
from dumps.readers.registry import reader_named
from dumps.store.discover import discover, examine
from dumps.store.run_data import RunData

CONFIG = {"eos_token": "<|im_end|>", "model_max_length": 8, "tokenizer_class": "Qwen2Tokenizer"}


def formats(path: Path) -> dict[str, ArtifactKind]:
    return {artifact.format: artifact.kind for artifact in examine(path)[0]}


def write(path: Path, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_file_of_the_real_folders_is_known(corpus: Path, reference_runs: Path) -> None:
    known = {
        "config.json": "hf_config",
        "generation_config.json": "hf_generation_config",
        "tokenizer_config.json": "hf_tokenizer_config",
        "special_tokens_map.json": "hf_special_tokens_map",
        "added_tokens.json": "hf_added_tokens",
        "tokenizer.json": "hf_tokenizer_json",
        "vocab.json": "hf_vocabulary",
        "merges.txt": "hf_merges",
        "chat_template.jinja": "hf_chat_template",
    }
    tiny = reference_runs / "tiny_model_tokenizer_data" / "model"
    run = discover([corpus / "tokenizers", tiny])
    assert {file.path.name for file in run.unknown} == {"model.safetensors"}
    assert len(run.artifacts) == 4 + 4 + 4 + 5
    for artifact in run.artifacts:
        assert artifact.format == known[artifact.path.name]
        is_config = artifact.path.name in ("config.json", "generation_config.json")
        assert artifact.kind is (ArtifactKind.CONFIG if is_config else ArtifactKind.TOKENIZER)


def test_names_do_not_matter(corpus: Path, tmp_path: Path) -> None:
    folder = corpus / "tokenizers" / "qwen2.5-7b"
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (tmp_path / "x").write_bytes((folder / name).read_bytes())
        assert formats(tmp_path / "x") == formats(folder / name)


def test_a_vocabulary_that_has_input_output_and_score_as_words_is_no_rollout(
    tmp_path: Path,
) -> None:
    words = ["input", "output", "score", "prompt", "response", "label", "data", "loss"]
    words += [f"w{i}" for i in range(200)]
    vocabulary = {word: i for i, word in enumerate(words)}
    assert formats(write(tmp_path / "vocab.json", vocabulary)) == {
        "hf_vocabulary": ArtifactKind.TOKENIZER
    }
    row = {"input": "a", "output": "b", "score": 1.0, "step": 1}
    assert formats(write(tmp_path / "1.jsonl", row)) == {"verl_rollout": ArtifactKind.ROLLOUT}


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (CONFIG, "hf_tokenizer_config"),
        ({"eos_token": {"content": "</s>", "lstrip": False}}, "hf_special_tokens_map"),
        ({"<|a|>": 7, "[B]": 8}, "hf_added_tokens"),
        ({"version": "1.0", "truncation": None, "added_tokens": []}, "hf_tokenizer_json"),
        ("{%- for m in messages %}{{ m['role'] }}{% endfor %}", "hf_chat_template"),
        # none of ours
        ("INFO chat template: {% for m in messages %}{{ m['role'] }}{% endfor %}", None),
        ({"reward": 7, "loss": 8}, None),
        ({"model_type": "x", "tokenizer_class": "y", "eos_token": "z"}, None),
        ("\n".join(f"word{i} other" for i in range(40)), None),
        ("a b\n" * 40 + "c", None),
        ({f"k{i}": 0 for i in range(200)}, None),
    ],
)
def test_small_files_are_known_by_what_they_hold(
    tmp_path: Path, content: object, format: str | None
) -> None:
    path = write(tmp_path / "file", content)
    glimpse = Glimpse(path, path.stat().st_size)
    known = [reader.format for reader in READERS if reader.sniff(glimpse)]
    assert known == ([format] if format else [])


def test_values_come_with_their_lines(corpus: Path) -> None:
    path = corpus / "tokenizers" / "llama-3-8b" / "tokenizer_config.json"
    config = reader_named("hf_tokenizer_config", ArtifactKind.TOKENIZER).read(path, no_progress)
    assert isinstance(config, RawConfig)
    eos = config.values["eos_token"]
    assert eos.value == json.loads(path.read_text())["eos_token"] == "<|end_of_text|>"
    assert '"eos_token"' in path.read_text().splitlines()[(eos.provenance.line or 0) - 1]
    assert config.values["added_tokens_decoder.128001.content"].value == "<|end_of_text|>"


def test_a_git_link_and_a_cut_file_are_named_and_stop_nothing(tmp_path: Path) -> None:
    write(tmp_path / "tokenizer_config.json", "../tokenizer/tokenizer_config.json")
    cut = json.dumps({**CONFIG, "chat_template": "{% for m in messages %}"}, indent=1)[:-8]
    write(tmp_path / "cut.json", cut)
    data = RunData(discover([tmp_path]))
    (link,) = data.run.unknown
    assert link.looks_like == "git symbolic link" and link.remedy is not None
    (config,) = data.tokenizers
    assert config.values["eos_token"].value == "<|im_end|>"
    assert config.truncated_at == "tokenizer_class"
    assert data.problems == []


def test_large_files_are_known_and_not_parsed_before_they_are_compared(corpus: Path) -> None:
    data = RunData(discover([corpus / "tokenizers" / "qwen2.5-7b"]))
    listed = [config for config in data.tokenizers if not config.values]
    assert {config.format for config in listed} == {"hf_merges", "hf_vocabulary"}


@given(data=st.binary(max_size=400), cut=st.integers(0, 200))
def test_any_bytes_are_read_or_refused_with_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("tokenizer")
    whole = json.dumps({**CONFIG, "added_tokens_decoder": {"3": {"content": "é"}}}).encode()
    for number, content in enumerate((data, whole[:cut] + data, b'{"<a>": ' + data)):
        path = folder / str(number)
        path.write_bytes(content)
        glimpse = Glimpse(path, len(content))
        for reader in READERS:
            if content and reader.sniff(glimpse):
                try:
                    assert isinstance(reader.read(path, no_progress), RawConfig)
                except AlignError as error:
                    assert str(path) in str(error)
