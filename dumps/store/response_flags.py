"""What can be wrong with a response that is visible in its own row.

Each flag is a definition, not a verdict: healthy runs have a few of most. Comparing their shares
between two runs is the business of the rollout rung.
"""

from __future__ import annotations

import re
from enum import IntFlag

_LOOP_TAIL = 256  # characters at the end that must repeat
_LOOP_PROBE = 64  # longest period counted as a loop: four times within the tail
_MIN_TOKEN0 = 16
_ROLE_MARKERS = ("\nuser\n", "\nassistant\n", "<|im_start|>")
# Controls, zero-width and private characters and U+FFFD: what damaged weights decode to.
_NON_PRINTING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\ue000-\uf8ff\ufffd]{8}"
)
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")
_LATIN = re.compile("[A-Za-z]+")
_SPECIAL_END = re.compile(r"(?:<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</s>)\s*\Z")


class ResponseFlag(IntFlag):
    """Properties of one response."""

    EMPTY = 1  # nothing but white space
    TOKEN0 = 2  # nine of ten characters are "!", token id 0 of GPT-2 style vocabularies
    LOOP = 4  # the last 256 characters repeat a text of at most 64
    NEXT_TURN = 8  # goes on into another turn of the dialogue
    REPLACED = 16  # holds U+FFFD: bytes that are no text
    NON_PRINTING = 32  # holds eight characters in a row that do not print
    CHINESE = 64  # more Chinese characters than Latin letters
    MIXED = 128  # Chinese and Latin, each at least a fifth of the letters of both
    SPECIAL_END = 256  # ends in a special token, of which eos is one
    CUT = 512  # stopped by the length limit
    END_KNOWN = 1024  # whether it was cut is recorded
    SPECIAL_KEPT = 2048  # its dump keeps special tokens, so that a missing eos shows


def flags_of(response: str) -> int:
    """Return the flags of one response that its text decides, as bits of `ResponseFlag`."""
    flags = 0
    if not response or response.isspace():
        return ResponseFlag.EMPTY.value
    if (
        "!!!!" in response
        and len(response) >= _MIN_TOKEN0
        and response.count("!") * 10 >= len(response) * 9
    ):
        flags |= 2
    if len(response) >= _LOOP_TAIL and _ends_in_a_loop(response[-_LOOP_TAIL:]):
        flags |= 4
    if any(marker in response for marker in _ROLE_MARKERS):
        flags |= 8
    if response[-1] in ">\n " and _SPECIAL_END.search(response[-64:]):
        flags |= 256
    if not response.replace("\n", "").isprintable() and _NON_PRINTING.search(response):
        flags |= 32
    if response.isascii():
        return flags
    if "\ufffd" in response:
        flags |= 16 | (32 if "\ufffd" * 8 in response else 0)
    return flags | _script(response)


def _script(response: str) -> int:
    """Return the bits of the language; counted on the first 2000 characters."""
    head = response[:2000]
    han = sum(map(len, _HAN.findall(head)))
    if not han:
        return 0
    latin = sum(map(len, _LATIN.findall(head)))
    return 64 * (han > latin) + 128 * (min(han, latin) * 5 >= han + latin)


def _ends_in_a_loop(tail: str) -> bool:
    start = tail.rfind(tail[-_LOOP_PROBE:], 0, -1)
    period = len(tail) - _LOOP_PROBE - start
    return start >= 0 and period <= _LOOP_PROBE and tail[period:] == tail[:-period]
