"""Token ids of a conversation of several turns that was recorded as messages, as verifiers does.

The conversation is rendered up to each turn. Where every rendering begins with the one before, in
text and in ids, the turns can be told apart and the loss mask is known; where it does not, the
template rewrites earlier turns (dropping their thinking, say) and no ids of them are sure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from align.core.text import Text
from align.rollout.rebuild import Mark, Render, Tokenizer
from align.rollout.retokenise import breaks_prefix
from align.rollout.token_row import Ids

Messages = Sequence[Mapping[str, Any]]

REFUSED = Text("the chat template refuses this conversation", "chat template 不接受这段对话")
REWRITTEN = Text(
    "the chat template renders earlier turns otherwise once a turn follows",
    "追加一轮之后，chat template 对之前各轮的渲染发生变化",
)
MERGED = Text(
    "encoding a longer conversation changes tokens of an earlier turn",
    "编码更长的对话会改变之前一轮的 token",
)
TURN_BY_TURN = Text("every turn only appends", "每一轮都只在末尾追加")


@dataclass(frozen=True, slots=True)
class RebuiltChat:
    """One conversation.

    Args:
        ids: of the whole; None where the template refuses it.
        mask: 1 at tokens of the model's own turns; as long as ``ids``.
        turn: the first message at which the prefix property breaks; None where it holds.
    """

    ids: Ids | None
    mask: Ids
    mark: Mark
    reason: Text
    turn: int | None = None


def rebuild_chat(
    prompt: Messages, completion: Messages, tokenizer: Tokenizer, render: Render
) -> RebuiltChat:
    """Encode a conversation turn by turn.

    Args:
        render: conversations to text, here without a generation prompt after a model's turn.
    """
    ends = range(len(prompt), len(prompt) + len(completion) + 1)
    whole = [*prompt, *completion]
    texts = [text for text in render([whole[:end] for end in ends]) if text is not None]
    if len(texts) != len(ends):
        return RebuiltChat(None, (), Mark.AMBIGUOUS, REFUSED)
    for turn, (before, after) in enumerate(pairwise(texts)):
        if not after.startswith(before):
            return _unsure(texts[-1], tokenizer, REWRITTEN, turn)
    broken = breaks_prefix(texts, tokenizer)
    if broken is not None:
        return _unsure(texts[-1], tokenizer, MERGED, broken[0] - 1)
    encoded = [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    mask = [0] * len(encoded[0])
    for message, ids in zip(completion, encoded[1:], strict=True):
        mask += [int(message.get("role") == "assistant")] * (len(ids) - len(mask))
    return RebuiltChat(tuple(encoded[-1]), tuple(mask), Mark.REBUILT, TURN_BY_TURN)


def _unsure(text: str, tokenizer: Tokenizer, reason: Text, turn: int) -> RebuiltChat:
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids = tuple(encoding.ids)
    return RebuiltChat(ids, (0,) * len(ids), Mark.AMBIGUOUS, reason, turn)
