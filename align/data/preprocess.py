"""Row identity by content, so that rows can be told apart whatever their place and their file."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from align.core.data_set import DataSet

_HASH_BYTES = 16

Hashes = npt.NDArray[np.bytes_]


def row_hashes(data: DataSet) -> Hashes:
    """Return a 128-bit hash of every row's question [n], by text or by token ids.

    Text is compared in Unicode form NFC and without white space at its ends and line ends of
    Windows: neither is another question.
    """
    if data.prompts is not None:
        texts = (normal(text).encode("utf-8", "surrogatepass") for text in data.prompts)
        return _hashes(texts, len(data))
    if data.token_ids is not None:
        return _hashes((np.asarray(ids, "<i8").tobytes() for ids in data.token_ids), len(data))
    return _hashes((), 0)


def data_set_hash(data: DataSet) -> str:
    """Return one hash of all rows in order, in hexadecimal."""
    return blake2b(row_hashes(data).tobytes(), digest_size=_HASH_BYTES).hexdigest()


def normal(text: str) -> str:
    """Return a text in the form in which questions are compared."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").strip())


def _hashes(rows: Iterable[bytes], num_rows: int) -> Hashes:
    digests = (blake2b(row, digest_size=_HASH_BYTES).digest() for row in rows)
    return np.fromiter(digests, f"S{_HASH_BYTES}", num_rows)
