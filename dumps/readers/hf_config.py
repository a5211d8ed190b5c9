"""A Hugging Face model's ``config.json`` and ``generation_config.json``.

Their spellings differ between transformers 4 and 5; they are kept as the file has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.config_text import MAX_BYTES, read_config_text
from dumps.readers.leaf import Leaf, config_values, dotted
from dumps.readers.nested_literal import NestedLiteral
from dumps.readers.reader import Glimpse, Progress, Reader

_KEY = re.compile(rb'"(\w+)"\s*:')
_OBJECT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"')
_SIZES = {b"hidden_size", b"vocab_size", b"num_hidden_layers", b"n_embd", b"d_model"}
_COMPOSITE = {b"text_config", b"vision_config", b"audio_config"}
_GENERATION = {
    b"do_sample",
    b"eos_token_id",
    b"bos_token_id",
    b"pad_token_id",
    b"max_new_tokens",
    b"max_length",
    b"temperature",
    b"top_p",
    b"top_k",
}


def _keys(glimpse: Glimpse) -> set[bytes]:
    if glimpse.size_bytes > MAX_BYTES or not _OBJECT.match(glimpse.head):
        return set()
    return set(_KEY.findall(glimpse.head))


def _sniff_model(glimpse: Glimpse) -> bool:
    keys = _keys(glimpse)
    return bool(keys & {b"model_type", b"architectures"} and keys & (_SIZES | _COMPOSITE))


def _sniff_generation(glimpse: Glimpse) -> bool:
    keys = _keys(glimpse)
    is_stamped = bool(keys & {b"transformers_version", b"_from_model_config"})
    foreign = {b"model_type", b"architectures", b"tokenizer_class", b"peft_type"}
    return is_stamped and bool(keys & _GENERATION) and not keys & foreign


def read_json_object(
    path: Path, progress: Progress, *, format: str, framework: str, kind: ProvenanceKind
) -> RawConfig:
    """Read every value of a JSON file, with the line of its key.

    Raises:
        ConfigError: The text is no JSON object, or ends before its first value does.
    """
    lines = read_config_text(path, progress).splitlines()
    leaves, num_read = _read_object(lines)
    if not leaves or not isinstance((*leaves[0].path, 0)[0], str):
        raise ConfigError(
            where=str(path),
            problem="is no JSON object with values in it",
            fix="copy the file again",
        )
    values = config_values(leaves, source=str(path), kind=kind)
    num_twice = len(leaves) - len(values)
    return RawConfig(
        source=str(path),
        format=format,
        framework=framework,
        values=values,
        truncated_at=dotted(leaves[-1].path) if num_read is None else None,
        num_unread_lines=sum(map(bool, map(str.strip, lines[num_read:]))) if num_read else 0,
        notes=(_twice(num_twice),) if num_twice else (),
    )


def _twice(num_keys: int) -> Text:
    return Text(
        f"{num_keys} keys stand twice: the last one is used",
        f"{num_keys} 个键出现两次：以最后一次为准",
    )


def _read_object(lines: list[str]) -> tuple[list[Leaf], int | None]:
    """Return the leaves, and the number of lines they took, None where the text breaks off."""
    literal = NestedLiteral(by_column=False)
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        if not literal.feed(number, text, is_last=True):
            break
        if literal.is_complete:
            return literal.leaves, number
    return literal.leaves, None


def read_hf_json(path: Path, progress: Progress, *, format: str) -> RawConfig:
    """Read every value of a model's JSON file, with the line of its key.

    Raises:
        ConfigError: The text is no JSON object, or ends before its first value does.
    """
    return read_json_object(
        path, progress, format=format, framework="huggingface", kind=ProvenanceKind.MODEL_CONFIG
    )


def _reader(format: str, sniff: Callable[[Glimpse], bool]) -> Reader:
    def read(path: Path, progress: Progress) -> RawConfig:
        return read_hf_json(path, progress, format=format)

    return Reader(format, ArtifactKind.CONFIG, sniff, read, priority=10)


READERS = (
    _reader("hf_config", _sniff_model),
    _reader("hf_generation_config", _sniff_generation),
)
