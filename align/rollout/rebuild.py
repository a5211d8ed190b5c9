"""Token ids of rollouts that were recorded as text: which can be rebuilt, and how surely.

A dump decoded without special tokens has lost the role markers of its prompts and the eos of its
responses. The prompt is rendered again from its data set row, the response encoded again, and eos
put after it, except where the response was cut at the length limit: a cut response has none.
Encoding is no inverse of decoding, so rebuilt ids are those of the text, not surely those sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, Protocol

from align.core.text import Text
from align.rollout.retokenise import BatchEncoder
from align.rollout.token_row import Ids

_AT_ONCE = 1024
_REPLACEMENT = "\ufffd"
Render = Callable[[Sequence[Sequence[Mapping[str, Any]]]], Sequence[str | None]]
"""Conversations to prompts with the generation prompt; None where the template refuses one."""


class Tokenizer(BatchEncoder, Protocol):
    """The part of a `tokenizers.Tokenizer` that is used here."""

    def decode_batch(
        self, sequences: list[list[int]], skip_special_tokens: bool = True
    ) -> list[str]: ...


class Mark(str, Enum):
    """How surely ids are those that were sampled."""

    EXACT = "exact"  # recorded
    REBUILT = "rebuilt"  # the only ids that this tokenizer gives, by rules that are known
    AMBIGUOUS = "ambiguous"  # other ids are as likely; the reason says why


@dataclass(frozen=True, slots=True)
class TextRow:
    """One response as a dump has it; what it does not have is None.

    Args:
        prompt: as dumped, special tokens lost or kept.
        messages: the conversation of the data set row.
        finish_reason: the engine's word for why it ended.
        num_response_tokens: the response's length in tokens, eos included.
    """

    prompt: str | None
    response: str
    messages: Sequence[Mapping[str, Any]] | None = None
    finish_reason: str | None = None
    num_response_tokens: int | None = None
    prompt_ids: Ids | None = None
    response_ids: Ids | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What is known of the run.

    Args:
        eos: the id at which the model stops.
        max_response_length: in tokens; None where not known.
        slack: tokens by which a cut response can be shorter once its text is encoded again.
        render: the chat template; None where not known.
        special: the spelling of special tokens, which a dump that kept them shows.
    """

    eos: int
    max_response_length: int | None
    slack: int = 1
    render: Render | None = None
    special: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The ids of one half of a row; None where nothing can be said."""

    ids: Ids | None
    mark: Mark
    reason: Text


@dataclass(frozen=True, slots=True)
class RebuiltRow:
    """Prompt and response of one row."""

    prompt: Rebuilt
    response: Rebuilt

    @property
    def mark(self) -> Mark:
        """The less sure of both."""
        return max(self.prompt.mark, self.response.mark, key=list(Mark).index)


@dataclass(frozen=True, slots=True)
class RebuiltRows:
    """Every row, in the order given."""

    rows: tuple[RebuiltRow, ...]

    def count(self, mark: Mark) -> int:
        """Return how many rows are as sure as that."""
        return sum(row.mark is mark for row in self.rows)


RECORDED = Text("recorded as ids", "已记录 id")
FROM_ROW = Text(
    "rendered from the data set row; without special tokens it is the recorded prompt",
    "由数据集的行渲染得到，去掉特殊 token 后与记录的 prompt 一致",
)
KEPT_MARKERS = Text("the recorded prompt kept its special tokens", "记录的 prompt 保留了特殊 token")
OTHER_ROW = Text(
    "the data set row renders to another prompt than the recorded one",
    "数据集的行渲染出的 prompt 与记录的不同",
)
LOST = Text(
    "special tokens are lost and no data set row with a chat template is at hand",
    "特殊 token 已丢失，且没有可用的数据集行与 chat template",
)
NO_PROMPT = Text("no prompt was recorded", "没有记录 prompt")
STOPPED = Text("ended by itself: eos added", "自行结束：已补上 eos")
CUT = Text("cut at max_response_length: no eos", "在 max_response_length 处截断：没有 eos")
NO_LIMIT = Text(
    "neither finish_reason nor max_response_length is known: it may have been cut",
    "finish_reason 与 max_response_length 均未知：可能是被截断的",
)
LONGER = Text(
    "encodes to more tokens than max_response_length: other ids were sampled",
    "重新编码后超过 max_response_length：采样到的是别的 id",
)
NEAR_LIMIT = Text(
    "encodes to nearly max_response_length tokens: it may have been cut",
    "重新编码后的长度接近 max_response_length：可能是被截断的",
)
OTHER_LENGTH = Text(
    "encodes to another number of tokens than were sampled",
    "重新编码后的 token 数与采样的不同",
)
BROKEN_TEXT = Text(
    "the text holds half a character: its bytes are lost",
    "文本含有不完整的字符，原字节已丢失",
)


def rebuild(rows: Iterable[TextRow], tokenizer: Tokenizer, rules: Rules) -> RebuiltRows:
    """Return ids for every row, each marked exact, rebuilt or ambiguous with the reason.

    Args:
        tokenizer: of the `tokenizers` library.
    """
    left, made = iter(rows), []
    while several := list(islice(left, _AT_ONCE)):
        prompts = _prompts(several, tokenizer, rules)
        responses = _responses(several, tokenizer, rules)
        made += [RebuiltRow(*both) for both in zip(prompts, responses, strict=True)]
    return RebuiltRows(tuple(made))


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> list[Ids]:
    """Encode texts; lone surrogates, which no encoder takes, as the replacement character."""
    whole = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    return [tuple(e.ids) for e in tokenizer.encode_batch_fast(whole, add_special_tokens=False)]


def _prompts(rows: Sequence[TextRow], tokenizer: Tokenizer, rules: Rules) -> Iterator[Rebuilt]:
    rendered = _rendered(rows, rules)
    texts = [text if text is not None else row.prompt or "" for text, row in zip(rendered, rows)]  # noqa: B905
    encoded = _encode(texts, tokenizer)
    bare = tokenizer.decode_batch([list(ids) for ids in encoded], skip_special_tokens=True)
    for row, text, ids, stripped in zip(rows, rendered, encoded, bare, strict=True):
        if row.prompt_ids is not None:
            yield Rebuilt(row.prompt_ids, Mark.EXACT, RECORDED)
        elif text is not None:
            same = row.prompt is None or row.prompt in (text, stripped)
            yield Rebuilt(ids, *((Mark.REBUILT, FROM_ROW) if same else (Mark.AMBIGUOUS, OTHER_ROW)))
        elif row.prompt is None:
            yield Rebuilt(None, Mark.AMBIGUOUS, NO_PROMPT)
        elif any(token in row.prompt for token in rules.special):
            yield Rebuilt(ids, Mark.REBUILT, KEPT_MARKERS)
        else:
            yield Rebuilt(ids, Mark.AMBIGUOUS, LOST)


def _rendered(rows: Sequence[TextRow], rules: Rules) -> list[str | None]:
    """Render every conversation once, however many responses it has."""
    texts: list[str | None] = [None] * len(rows)
    if rules.render is None:
        return texts
    places: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        if row.messages is not None and row.prompt_ids is None:
            places.setdefault(id(row.messages), []).append(place)
    conversations = [rows[several[0]].messages or () for several in places.values()]
    made = rules.render(conversations) if conversations else ()
    for several, text in zip(places.values(), made, strict=True):
        for place in several:
            texts[place] = text
    return texts


def _responses(rows: Sequence[TextRow], tokenizer: Tokenizer, rules: Rules) -> Iterator[Rebuilt]:
    encoded = _encode([row.response for row in rows], tokenizer)
    for row, ids in zip(rows, encoded, strict=True):
        if row.response_ids is not None:
            yield Rebuilt(row.response_ids, Mark.EXACT, RECORDED)
            continue
        made, mark, reason = _ended(row, ids, rules)
        if _is_broken(row.response):
            mark, reason = Mark.AMBIGUOUS, BROKEN_TEXT
        elif row.num_response_tokens is not None and len(made) != row.num_response_tokens:
            mark, reason = Mark.AMBIGUOUS, OTHER_LENGTH
        yield Rebuilt(made, mark, reason)


def _ended(row: TextRow, ids: Ids, rules: Rules) -> tuple[Ids, Mark, Text]:
    """Put eos after a response that ended by itself."""
    limit, with_eos = rules.max_response_length, (*ids, rules.eos)
    known = _stopped(row, limit)
    if known is None and limit is None:
        return with_eos, Mark.AMBIGUOUS, NO_LIMIT
    if limit is not None and len(ids) > limit:
        return ids[:limit], Mark.AMBIGUOUS, LONGER
    if known is True:
        return with_eos, Mark.REBUILT, STOPPED
    if known is False:
        same = limit is None or len(ids) == limit
        return ids, *((Mark.REBUILT, CUT) if same else (Mark.AMBIGUOUS, OTHER_LENGTH))
    assert limit is not None
    if len(ids) == limit:
        return ids, Mark.REBUILT, CUT
    if len(ids) >= limit - rules.slack:
        return with_eos, Mark.AMBIGUOUS, NEAR_LIMIT
    return with_eos, Mark.REBUILT, STOPPED


def _stopped(row: TextRow, limit: int | None) -> bool | None:
    """Tell whether a response ended by itself, where the dump says so."""
    if row.finish_reason is not None:
        return row.finish_reason not in ("length", "abort", "max_tokens")
    if row.num_response_tokens is not None and limit is not None:
        return True if row.num_response_tokens < limit else None
    return None


def _is_broken(text: str) -> bool:
    return _REPLACEMENT in text or any("\ud800" <= character <= "\udfff" for character in text)
