"""The prompts that a run's chat template and tokenizer make of the rows of a data set.

A template runs in a process with bounds, too slow for every row. It is rendered once for every
sequence of roles, with marks in place of what was said, and the marks are replaced row by row; some
rows are rendered in full to prove that this gives the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from align.core.config_value import ConfigLeaf
from align.core.data_set import DataSet
from align.core.text import Text
from dumps.readers.tokenizer_content import Json
from dumps.store.run_data import RunData
from tokenizer_check.chat_template import Conversation, render
from tokenizer_check.content import Content, read_content
from tokenizer_check.load import load
from tokenizer_check.special_tokens import special_tokens

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from tokenizers import Tokenizer

Chat = tuple[tuple[str, str], ...]

_MARK = re.compile(r"alignmark(\d+)end")
_MAX_PATTERNS = 32
_PROVED = 24  # rows rendered in full
_COMPARED = 512  # rows encoded in both ways, where the package may cut words its own way
_AT_ONCE = 4096  # texts encoded at a time
_NO_NAME = Text("row", "行")


@dataclass(frozen=True, slots=True)
class DataPrompts:
    """What one run's tokenizer makes of rows.

    Args:
        by_class: the same as transformers loads it; None where it is not installed.
        trust_class: the run's transformers is of the major release that is installed here.
        template: None where the run's files have none: then ids can be decoded, not made.
        values: what the template is given beside the chat.
    """

    tokenizer: Tokenizer
    by_class: Tokenizer | None
    trust_class: bool
    template: str | None
    values: Mapping[str, Json]
    _lengths: dict[DataSet, tuple[int, ...] | None] = field(default_factory=dict, repr=False)

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id, added tokens included."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def rendered(self, data: DataSet) -> list[str] | None:
        """Return the text of every prompt, None where the rows are no chats, or none is proved."""
        if data.token_ids is not None:
            return self.decoded(data.token_ids)
        if data.chats is None or self.template is None:
            return None
        return self._filled(data.chats)

    def lengths(self, data: DataSet) -> tuple[int, ...] | None:
        """Return the number of tokens of every prompt, None as `rendered`."""
        if data not in self._lengths:
            self._lengths[data] = self._counted(data)
        return self._lengths[data]

    def _counted(self, data: DataSet) -> tuple[int, ...] | None:
        texts = self.rendered(data)
        if texts is None:
            return None
        used = self.tokenizer
        if self.by_class is not None:
            some = texts[:_COMPARED]
            alike = _encoded(self.tokenizer, some) == _encoded(self.by_class, some)
            if not (alike or self.trust_class):
                return None
            used = self.by_class
        return tuple(map(len, _encoded(used, texts)))

    def decoded(self, rows: Sequence[npt.NDArray[np.integer[Any]]]) -> list[str]:
        """Return the text of token ids, special tokens kept; ids beyond the vocabulary are none."""
        size = self.vocabulary_size
        ids = [[number for number in row.tolist() if 0 <= number < size] for row in rows]
        texts: list[str] = self.tokenizer.decode_batch(ids, skip_special_tokens=False)
        return texts

    def told_again(self, texts: Sequence[str]) -> list[str]:
        """Encode and decode, so that a text can be set beside one that was made of ids."""
        ids = _encoded(self.tokenizer, texts)
        again: list[str] = self.tokenizer.decode_batch(ids, skip_special_tokens=False)
        return again

    def _filled(self, chats: Sequence[Chat]) -> list[str] | None:
        patterns = dict.fromkeys(tuple(role for role, _ in chat) for chat in chats if chat)
        if len(patterns) > _MAX_PATTERNS:
            return None
        marked = [
            tuple((role, f"alignmark{i}end") for i, role in enumerate(roles)) for roles in patterns
        ]
        shown = list(_telling(chats))
        made = self._rendered_in_full([*marked, *shown])
        if any(text is None for text in made):
            return None
        frames = dict(zip(patterns, map(str, made), strict=False))
        real = made[len(marked) :]
        for fill in (_as_it_is, _stripped):
            if [_replaced(chat, frames, fill) for chat in shown] == real:
                return [_replaced(chat, frames, fill) for chat in chats]
        return None

    def _rendered_in_full(self, chats: Sequence[Chat]) -> list[str | None]:
        assert self.template is not None
        conversations = [
            Conversation(
                _NO_NAME,
                tuple({"role": role, "content": content} for role, content in chat),
                True,
                values=self.values,
            )
            for chat in chats
        ]
        return [outcome.text for outcome in render(self.template, {}, conversations)]


def data_prompts(
    run: RunData, options: Mapping[str, ConfigLeaf], template: str | None = None
) -> DataPrompts | Text:
    """Load a run's tokenizer, or say why not.

    Args:
        options: what the configuration passes to the template, such as ``enable_thinking``.
        template: the configuration's own, in place of the tokenizer's.
    """
    content = read_content(run)
    tokenizer = load(content)
    if isinstance(tokenizer, Text):
        return tokenizer
    if template is None and content.template is not None:
        template = content.template.value
    tokens: dict[str, Json] = {
        f"{role}_token": token.text
        for (_, role), token in special_tokens(run).tokens.items()
        if token.text is not None
    }
    by_class, version = _loaded_by_class(content)
    own = run.fact("transformers")
    same_release = own is not None and own.partition(".")[0] == version.partition(".")[0]
    return DataPrompts(
        tokenizer, by_class, same_release, template, {**tokens, **json.loads(json.dumps(options))}
    )


def _loaded_by_class(content: Content) -> tuple[Tokenizer | None, str]:
    """Load the folder of tokenizer.json as a framework does, running none of its code."""
    if content.parts is None:
        return None, ""
    try:
        import transformers
    except ImportError:
        return None, ""
    folder = str(content.parts.path.parent)
    try:
        found = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, transformers.__version__
    return getattr(found, "backend_tokenizer", None), transformers.__version__


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    found: list[list[int]] = []
    for start in range(0, len(texts), _AT_ONCE):
        batch = texts[start : start + _AT_ONCE]
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        found += [encoding.ids for encoding in encodings]
    return found


def _telling(chats: Sequence[Chat]) -> Iterator[Chat]:
    """Choose the first rows, and the first that a template might treat otherwise."""
    usual = [chat for chat in chats[:_PROVED] if chat]
    yield from usual[: _PROVED // 2]
    unusual = (
        chat
        for chat in chats
        if any(text != text.strip() or "<" in text or not text for _, text in chat)
    )
    for chat, _ in zip(unusual, range(_PROVED // 2), strict=False):
        yield chat


def _replaced(chat: Chat, frames: Mapping[tuple[str, ...], str], fill: _Fill) -> str:
    if not chat:
        return ""
    frame = frames[tuple(role for role, _ in chat)]
    return _MARK.sub(lambda mark: fill(chat[int(mark[1])][1]), frame)


def _as_it_is(text: str) -> str:
    return text


def _stripped(text: str) -> str:
    return text.strip()


if TYPE_CHECKING:
    from collections.abc import Callable

    _Fill = Callable[[str], str]
