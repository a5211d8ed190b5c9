"""Row identity by content, so that rows can be told apart whatever their place and their file."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from align.core.data_set import DataSet

_HASH_BYTES = 16
_BRIEF_BYTES = 4
BRIEF_DIGITS = 2 * _BRIEF_BYTES

Hashes = npt.NDArray[np.bytes_]


def row_hashes(data: DataSet) -> Hashes:
    """Return a 128-bit hash of every row's question [n], by text or by token ids.

    Text is compared in Unicode form NFC and without white space at its ends and line ends of
    Windows: neither is another question.
    """
    if data.prompts is not None:
        return question_hashes(data.prompts, len(data))
    if data.token_ids is not None:
        return _hashes((np.asarray(ids, "<i8").tobytes() for ids in data.token_ids), len(data))
    return _hashes((), 0)


def hashed_content(data: DataSet) -> str:
    """Return what the hashes are of: "text", or "ids" which no text's hash ever equals."""
    return "text" if data.prompts is not None else "ids"


def question_hashes(questions: Iterable[str], num_rows: int) -> Hashes:
    """Return the same of questions as text."""
    texts = (normal(text).encode("utf-8", "surrogatepass") for text in questions)
    return _hashes(texts, num_rows)


def data_set_hash(rows: Hashes) -> str:
    """Return one hash of all rows in order, in hexadecimal."""
    return blake2b(rows.tobytes(), digest_size=_HASH_BYTES).hexdigest()


def brief_hashes(rows: Hashes) -> str:
    """Return the first 32 bits of each row's hash, eight hexadecimal digits a row."""
    whole = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), _HASH_BYTES)
    return whole[:, :_BRIEF_BYTES].tobytes().hex()


def normal(text: str) -> str:
    """Return a text in the form in which questions are compared."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").strip())


def _hashes(rows: Iterable[bytes], num_rows: int) -> Hashes:
    digests = (blake2b(row, digest_size=_HASH_BYTES).digest() for row in rows)
    return np.fromiter(digests, f"S{_HASH_BYTES}", num_rows)
