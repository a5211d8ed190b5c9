"""A model's config.json and generation_config.json are read with the line of every key."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.errors import AlignError, ConfigError
from dumps.readers.hf_config import READERS
from dumps.readers.reader import Glimpse, no_progress

MODEL, GENERATION = READERS


def glimpse(path: Path) -> Glimpse:
    return Glimpse(path, path.stat().st_size)


def read(tmp_path: Path, text: str | bytes) -> RawConfig:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    config = MODEL.read(path, no_progress)
    assert isinstance(config, RawConfig)
    return config


def values_of(config: RawConfig) -> dict[str, Any]:
    return {key: value.value for key, value in config.values.items()}


def leaves_of(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        parts = [leaves_of(v, f"{key}.{k}" if key else str(k)) for k, v in value.items()]
    elif holds_dict(value):
        parts = [leaves_of(v, f"{key}[{i}]") for i, v in enumerate(value)]
    else:
        return {key: as_tuple(value)}
    return {k: v for part in parts for k, v in part.items()}


def holds_dict(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, dict) or holds_dict(v) for v in value)


def as_tuple(value: Any) -> Any:
    return tuple(map(as_tuple, value)) if isinstance(value, list | tuple | dict) else value


def test_every_model_file_of_the_corpus_is_read_as_json_reads_it(
    corpus: Path, reference_runs: Path
) -> None:
    folders = [
        *(corpus / "tokenizers").iterdir(),
        reference_runs / "tiny_model_tokenizer_data/model",
    ]
    num_files = 0
    for folder in folders:
        for path in folder.glob("*.json"):
            known = [r.format for r in READERS if r.sniff(glimpse(path))]
            expected = {
                "config.json": ["hf_config"],
                "generation_config.json": ["hf_generation_config"],
            }.get(path.name, [])
            assert known == expected, path
            if not known:
                continue
            num_files += 1
            reader = MODEL if known == ["hf_config"] else GENERATION
            config = reader.read(path, no_progress)
            assert values_of(config) == leaves_of(json.loads(path.read_text()))
            assert (config.framework, config.format) == ("huggingface", known[0])
            lines = path.read_text().splitlines()
            for value in config.values.values():
                assert value.provenance.kind is ProvenanceKind.MODEL_CONFIG
                name = value.key.rpartition(".")[2].partition("[")[0]
                assert f'"{name}"' in lines[(value.provenance.line or 0) - 1]
    assert num_files == 6


def test_nested_configs_and_numbers_that_are_not_finite_are_kept(tmp_path: Path) -> None:
    text = (
        '{"model_type": "qwen3", "text_config": {"rope_scaling": null, "factor": 1e5},\n'
        ' "a": NaN, "b": -Infinity, "c": 1E400, "é": "\\u00e9\\/\\ud83d\\ude00",\n'
        ' "layers": [{"n": 1}, {"n": 2}], "eos_token_id": [1, 2], "x": {}, "y": []}'
    )
    found = values_of(read(tmp_path, text))
    expected = leaves_of(json.loads(text))
    assert math.isnan(found.pop("a")) and math.isnan(expected.pop("a"))
    assert found == expected
    assert found["b"] == -math.inf and found["text_config.factor"] == 1e5


def test_crlf_tabs_and_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    config = read(tmp_path, b'\xef\xbb\xbf{\r\n\t"hidden_size": 8,\r\n\t"a": "b"\r\n}\r\n')
    assert values_of(config) == {"hidden_size": 8, "a": "b"}
    assert config.values["a"].provenance.line == 3
    assert config.truncated_at is None


def test_a_key_that_stands_twice_is_noted(tmp_path: Path) -> None:
    config = read(tmp_path, '{"a": 1,\n"b": 2,\n"a": 3}')
    assert values_of(config) == {"a": 3, "b": 2}
    assert len(config.notes) == 1


def test_a_cut_at_any_byte_gives_a_part_of_the_truth(tmp_path: Path) -> None:
    text = json.dumps(
        {"model_type": "x", "n": 123, "l": [1, 2], "d": {"e": "f", "g": 1e-06}}, indent=1
    )
    expected = leaves_of(json.loads(text))
    for end in range(len(text)):
        try:
            config = read(tmp_path, text[:end])
        except ConfigError as error:
            assert end < text.index('"n"') and error.fix
            continue
        assert values_of(config).items() <= expected.items()
        assert config.truncated_at == list(config.values)[-1]


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "null", "{", '{"a"', "\x00" * 40, "[" * 9999, "{}", '[{"a": 1}]']
)
def test_what_is_no_object_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(AlignError, match=r"config\.json"):
        read(tmp_path, text)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "config.json"
    path.write_bytes(b'{"model_type": "x", "vocab_size": 3,' + data)
    for reader in READERS:
        reader.sniff(glimpse(path))
        try:
            reader.read(path, no_progress)
        except AlignError:
            continue


@given(
    st.dictionaries(
        st.text("abc_", min_size=1),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda c: (
                st.lists(c, max_size=3) | st.dictionaries(st.text("xyz", min_size=1), c, max_size=3)
            ),
            max_leaves=10,
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, 2]),
)
def test_whatever_json_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any], indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("json") / "config.json"
    path.write_text(json.dumps({"model_type": "x"} | value, indent=indent))
    config = MODEL.read(path, no_progress)
    assert values_of(config) == leaves_of({"model_type": "x"} | value)
    assert config.truncated_at is None
