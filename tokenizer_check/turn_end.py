"""The token that really ends a turn: what a chat template writes after an answer."""

from __future__ import annotations

import re
from collections.abc import Collection

from align.core.text import Text
from tokenizer_check.chat_template import Conversation, Rendering

_ANSWER = "ZQXJ answer ZQXJ"
_LOOKS_SPECIAL = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z]{2,20}\]")

CONVERSATION = Conversation(
    Text("end of a turn", "一轮的结尾"),
    (
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": _ANSWER},
    ),
    False,
)


def turn_end(rendering: Rendering, known: Collection[str]) -> str | None:
    """Return the special token after an answer; None where the template writes none there.

    Args:
        rendering: of `CONVERSATION`.
        known: special tokens of the tokenizer, as text.
    """
    if rendering.text is None or _ANSWER not in rendering.text:
        return None
    after = rendering.text.rpartition(_ANSWER)[2].lstrip()
    listed = sorted((token for token in known if after.startswith(token)), key=len)
    if listed:
        return listed[-1]
    looks = _LOOKS_SPECIAL.match(after)
    return looks[0] if looks else None
