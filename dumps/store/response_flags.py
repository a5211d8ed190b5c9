"""What can be wrong with a response that is visible in its text alone.

Each flag is a definition, not a verdict: healthy runs have a few of most. Comparing their shares
between two runs is the business of the rollout rung.
"""

from __future__ import annotations

from enum import IntFlag

_LOOP_TAIL = 256  # characters at the end that must repeat
_LOOP_PROBE = 64  # longest period counted as a loop: four times within the tail
_MIN_TOKEN0 = 16
_ROLE_MARKERS = ("\nuser\n", "\nassistant\n", "<|im_start|>")


class ResponseFlag(IntFlag):
    """Properties of one response."""

    EMPTY = 1  # nothing but white space
    TOKEN0 = 2  # nine of ten characters are "!", token id 0 of GPT-2 style vocabularies
    LOOP = 4  # the last 256 characters repeat a text of at most 64
    NEXT_TURN = 8  # goes on into another turn of the dialogue
    REPLACED = 16  # holds U+FFFD: bytes that are no text


def flags_of(response: str) -> int:
    """Return the flags of one response, as bits of `ResponseFlag`."""
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
    if "\ufffd" in response:
        flags |= 16
    return flags


def _ends_in_a_loop(tail: str) -> bool:
    start = tail.rfind(tail[-_LOOP_PROBE:], 0, -1)
    period = len(tail) - _LOOP_PROBE - start
    return start >= 0 and period <= _LOOP_PROBE and tail[period:] == tail[:-period]
