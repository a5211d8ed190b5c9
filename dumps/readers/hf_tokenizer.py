"""A tokenizer folder of Hugging Face: what states its special tokens, and what is large.

``tokenizer_config.json``, ``special_tokens_map.json`` and ``added_tokens.json`` are read, with the
line of every key. ``tokenizer.json``, ``vocab.json``, ``merges.txt``, ``chat_template.jinja``, a
SentencePiece ``tokenizer.model``, ``*.tiktoken`` and MindSpeed-RL's ``templates.json`` are
recognised by their content; they are parsed where two runs are compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from align.core.config_value import RawConfig
from align.core.run import ArtifactKind
from dumps.readers.config_text import MAX_BYTES
from dumps.readers.hf_config import read_hf_json
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.text import identify

CONFIG = "hf_tokenizer_config"
MAP = "hf_special_tokens_map"
ADDED = "hf_added_tokens"
JSON = "hf_tokenizer_json"
VOCABULARY = "hf_vocabulary"
MERGES = "hf_merges"
TEMPLATE = "hf_chat_template"
SENTENCEPIECE = "sentencepiece_model"
TIKTOKEN = "tiktoken"
SLOTS = "mindspeed_rl_templates"

_OBJECT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"')
_KEY = re.compile(rb'"(\w+)"\s*:')
_PAIR = re.compile(rb'[{,]\s*"((?:[^"\\]|\\.)*)"\s*:\s*(\d+)\s*(?=[,}])')
_SPECIAL = re.compile(rb"[<\[].*[>\]]", re.DOTALL)
_TOKENIZER_ALONE = {
    b"added_tokens_decoder",
    b"clean_up_tokenization_spaces",
    b"model_max_length",
    b"tokenizer_class",
}
_SPECIAL_TOKENS = {b"bos_token", b"eos_token", b"pad_token", b"unk_token"}
_MODEL = {b"model_type", b"architectures"}
_MAP_KEY = re.compile(
    rb"\w+_tokens?|content|lstrip|rstrip|normalized|single_word|special|__type|id"
)
_MIN_VOCABULARY = 100  # pairs of token and id in the first 64 KiB
_MIN_MERGES = 20
_TEMPLATE_SUFFIXES = {".jinja", ".jinja2", ".j2"}


def _keys(glimpse: Glimpse) -> set[bytes]:
    """Return every key of a JSON object's first 64 KiB, at any depth."""
    return set(_KEY.findall(glimpse.head)) if _OBJECT.match(glimpse.head) else set()


def _is_config(glimpse: Glimpse) -> bool:
    keys = _keys(glimpse)
    return (
        glimpse.size_bytes <= MAX_BYTES
        and bool(keys & _TOKENIZER_ALONE)
        and len(keys & (_TOKENIZER_ALONE | _SPECIAL_TOKENS | {b"chat_template"})) >= 2
        and not keys & _MODEL
    )


def _is_map(glimpse: Glimpse) -> bool:
    keys = _keys(glimpse)
    return bool(keys & _SPECIAL_TOKENS) and all(map(_MAP_KEY.fullmatch, keys))


def _pairs(glimpse: Glimpse) -> list[tuple[bytes, bytes]]:
    """Return the tokens and ids an object of nothing else starts with."""
    if not _OBJECT.match(glimpse.head):
        return []
    found: list[tuple[bytes, bytes]] = []
    position = glimpse.head.index(b"{")
    while (pair := _PAIR.match(glimpse.head, position)) is not None:
        found.append((pair[1], pair[2]))
        position = pair.end()
    is_whole = glimpse.size_bytes > len(glimpse.head) or glimpse.head[position:].strip() == b"}"
    return found if is_whole else []


def _is_vocabulary(glimpse: Glimpse) -> bool:
    pairs = _pairs(glimpse)
    return len(pairs) >= _MIN_VOCABULARY and len({id for _, id in pairs}) == len(pairs)


def _is_added(glimpse: Glimpse) -> bool:
    pairs = _pairs(glimpse)
    return bool(pairs) and all(_SPECIAL.fullmatch(token) for token, _ in pairs)


def _is_tokenizer_json(glimpse: Glimpse) -> bool:
    keys = _keys(glimpse)
    return b"added_tokens" in keys and bool(keys & {b"truncation", b"normalizer", b"pre_tokenizer"})


def _is_merges(glimpse: Glimpse) -> bool:
    """Tell whether the first lines merge what stands before them, as byte pair encoding does."""
    if identify(glimpse.head) is not None:
        return False
    lines = glimpse.head.decode("utf-8", "replace").splitlines()
    rows = [line.split(" ") for line in lines if not line.startswith("#version")][:_MIN_MERGES]
    known: set[str] = set()
    for row in rows:
        merged = "".join(row)
        if len(row) != 2 or merged in known or not all(_is_piece(piece, known) for piece in row):
            return False
        known.add(merged)
    return len(rows) == _MIN_MERGES


def _is_piece(piece: str, known: set[str]) -> bool:
    return piece in known or len(piece.removesuffix("</w>")) == 1


def _is_template(glimpse: Glimpse) -> bool:
    head = glimpse.head
    # One may start with plain text, and so may a log line that quotes one: the name decides.
    starts = head.lstrip().startswith((b"{%", b"{{", b"{#"))
    named = glimpse.path.suffix in _TEMPLATE_SUFFIXES and b"{%" in head
    return (starts or named) and b"messages" in head and b"role" in head


_TOKEN_AND_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} (\d+)")
_MIN_RANKS = 20
_SLOT_TEMPLATE = re.compile(rb'"format_(?:user|system|separator|observation)"\s*:\s*\{\s*"slots"')


def _is_tiktoken(glimpse: Glimpse) -> bool:
    """Tell whether the first lines are tokens in base64 with the ranks 0, 1, 2 and so on."""
    lines = glimpse.head.splitlines()[:_MIN_RANKS]
    rows = [_TOKEN_AND_RANK.fullmatch(line.strip()) for line in lines]
    ranks = [int(row[1]) for row in rows if row is not None]
    return ranks == list(range(_MIN_RANKS))


def _is_sentencepiece(glimpse: Glimpse) -> bool:
    """Tell whether the file begins with several pieces: fields 1 that begin with a text."""
    head, at = glimpse.head, 0
    for _ in range(3):
        if len(head) < at + 4 or head[at] != 0x0A or head[at + 2] != 0x0A:
            return False
        size, text = head[at + 1], head[at + 3]
        if size > 0x7F or text + 2 > size:
            return False
        at += 2 + size
    return True


def _is_slots(glimpse: Glimpse) -> bool:
    head = glimpse.head
    return head.lstrip()[:1] == b"[" and b'"name"' in head and bool(_SLOT_TEMPLATE.search(head))


def _reading(format: str, sniff: Callable[[Glimpse], bool]) -> Reader:
    def read(path: Path, progress: Progress) -> RawConfig:
        return read_hf_json(path, progress, format=format)

    return Reader(format, ArtifactKind.TOKENIZER, sniff, read, priority=10)


def _listing(format: str, sniff: Callable[[Glimpse], bool]) -> Reader:
    def read(path: Path, progress: Progress) -> RawConfig:
        return RawConfig(str(path), format, "huggingface", {})

    return Reader(format, ArtifactKind.TOKENIZER, sniff, read)


READERS = (
    _reading(CONFIG, _is_config),
    _reading(MAP, _is_map),
    _reading(ADDED, _is_added),
    _listing(JSON, _is_tokenizer_json),
    _listing(VOCABULARY, _is_vocabulary),
    _listing(MERGES, _is_merges),
    _listing(TEMPLATE, _is_template),
    _listing(SENTENCEPIECE, _is_sentencepiece),
    _listing(TIKTOKEN, _is_tiktoken),
    _listing(SLOTS, _is_slots),
)
