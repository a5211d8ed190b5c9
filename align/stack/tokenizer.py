"""Tokenizers: the built-in tiny one, or a Hugging Face folder's.

The tiny one is byte-level BPE with Qwen's splitting, special tokens and turn format. Nothing is
trained: its merges spell out a word list, so every version of every library
builds the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from align.core.errors import ConfigError
from align.stack.check_config import BUILT_IN_MODELS

if TYPE_CHECKING:
    from align.stack.config import StackConfig

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)  # Qwen's first three, in its order of ids

# Qwen's turns, without Qwen's default system prompt.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# How Qwen2 and Qwen3 split text before merging; every digit stands alone.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS = """
system user assistant tool What Which Larger Add The Answer How Then So is of and or to the in for
that with are was how many much more than each sum plus number larger smaller answer total cost day
week one two three four five six seven eight nine ten
"""


def load_tokenizer(config: StackConfig) -> PreTrainedTokenizerFast:
    """Load the tokenizer of ``model.tokenizer_path``, else of ``model.path``.

    A tokenizer without pad token pads with its eos token, and ``model.custom_chat_template``
    replaces the chat template, both as in verl.

    Raises:
        ConfigError: The folder holds no tokenizer.
    """
    model = config.model
    path = model.tokenizer_path or model.path
    tokenizer = tiny_tokenizer() if path in BUILT_IN_MODELS else _from_folder(path)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer


def tiny_tokenizer(merges: tuple[tuple[str, str], ...] | None = None) -> PreTrainedTokenizerFast:
    """Build the tokenizer of the tiny models: bytes, words, then Qwen's special tokens.

    Args:
        merges: others than `tiny_merges()`, best first.

    Returns:
        eos ``<|im_end|>`` and pad ``<|endoftext|>``, as Qwen's Instruct models have it.
    """
    rules = list(tiny_merges() if merges is None else merges)
    symbols = dict.fromkeys(chain(sorted(pre_tokenizers.ByteLevel.alphabet()), map("".join, rules)))
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=rules))
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START, TURN_END],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


@cache
def tiny_merges() -> tuple[tuple[str, str], ...]:
    """Return the merges that make every word of the list one token, alone and after a space.

    Each word is cut by the merges before it, then joined from left to right. Later merges rank
    lower, so they cannot undo a word.
    """
    merges: dict[tuple[str, str], None] = {}
    words = _WORDS.split()
    for word in chain(words, (f"Ġ{word}" for word in words)):  # Ġ is the byte of a space
        pieces = _cut(word, merges)
        while len(pieces) > 1:
            merges[pieces[0], pieces[1]] = None
            pieces = ["".join(pieces[:2]), *pieces[2:]]
    return tuple(merges)


def _cut(word: str, merges: Iterable[tuple[str, str]]) -> list[str]:
    pieces = list(word)
    for pair in merges:
        at = 0
        while at < len(pieces) - 1:
            if (pieces[at], pieces[at + 1]) == pair:
                pieces[at : at + 2] = ["".join(pair)]
            at += 1
    return pieces


def _from_folder(path: str) -> PreTrainedTokenizerFast:
    try:
        found = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(
            where=path,
            problem=f"holds no tokenizer ({str(error).splitlines()[0]})",
            fix="set actor_rollout_ref.model.tokenizer_path to a folder with tokenizer.json",
        ) from error
    if not isinstance(found, PreTrainedTokenizerFast):
        raise ConfigError(
            where=path,
            problem="has no fast tokenizer",
            fix="save it again with transformers, which writes tokenizer.json",
        )
    return found
