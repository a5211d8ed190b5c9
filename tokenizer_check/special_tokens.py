"""What a run's model and tokenizer files say its special tokens are.

Four files state them, for two purposes. The tokenizer's own token comes from tokenizer_config.json
and, in older folders, special_tokens_map.json: trainers pad and cut by it. The ids that end
generation come from generation_config.json or, without one, from config.json: rollout engines
stop by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from align.core.config_value import ConfigLeaf, ConfigValue, RawConfig
from dumps.readers.hf_tokenizer import ADDED, CONFIG, MAP
from dumps.store.run_data import RunData

ROLES = ("eos", "pad", "bos", "unk")


class File(str, Enum):
    """A file that states special tokens; of one purpose the stronger file stands first."""

    TOKENIZER_CONFIG = "tokenizer_config.json"
    SPECIAL_TOKENS_MAP = "special_tokens_map.json"
    GENERATION_CONFIG = "generation_config.json"
    CONFIG = "config.json"

    @property
    def states_ids(self) -> bool:
        """Whether it has ids, not texts."""
        return self in (File.GENERATION_CONFIG, File.CONFIG)


OF_TOKENIZER = (File.TOKENIZER_CONFIG, File.SPECIAL_TOKENS_MAP)
OF_GENERATION = (File.GENERATION_CONFIG, File.CONFIG)

_FILES = {
    CONFIG: File.TOKENIZER_CONFIG,
    MAP: File.SPECIAL_TOKENS_MAP,
    "hf_generation_config": File.GENERATION_CONFIG,
    "hf_config": File.CONFIG,
}
NESTED = ("text_config", "llm_config", "language_config", "thinker_config.text_config")
_DECODER = "added_tokens_decoder."


@dataclass(frozen=True, slots=True)
class Token:
    """One special token as one file states it.

    Args:
        role: "eos", "pad", "bos" or "unk".
        ids: what the file states, or what the run's files resolve the text to; empty where
            neither is known. Several ids are a set: each of them ends generation.
        text: the token itself; None where the file has ids alone.
        stated: key, value and place.
    """

    role: str
    ids: frozenset[int]
    text: str | None
    stated: ConfigValue

    def same_as(self, other: Token) -> bool:
        """Compare ids where both sides know them, else the texts."""
        if self.ids and other.ids:
            return self.ids == other.ids
        return self.text is not None and self.text == other.text

    def shown(self) -> str:
        """Return ``<|im_end|> (151645)``, or the ids alone."""
        ids = ", ".join(map(str, sorted(self.ids)))
        if self.text is None:
            return ids
        return f"{self.text} ({ids})" if ids else self.text


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Every statement of one run; ``contradicting`` are files of one kind that disagree."""

    tokens: Mapping[tuple[File, str], Token]
    contradicting: Mapping[tuple[File, str], tuple[Token, ...]]

    @property
    def eos(self) -> Token | None:
        """End token: the tokenizer's where it is stated, else the ids that end generation."""
        return self._get("eos")

    @property
    def pad(self) -> Token | None:
        """Padding, found in the same order."""
        return self._get("pad")

    @property
    def pad_is_eos(self) -> bool | None:
        """Whether padding is the end token; None where either is not known."""
        return None if self.eos is None or self.pad is None else self.eos.same_as(self.pad)

    def _get(self, role: str) -> Token | None:
        files = (*OF_TOKENIZER, *OF_GENERATION)
        return next((self.tokens[f, role] for f in files if (f, role) in self.tokens), None)


def special_tokens(data: RunData) -> SpecialTokens:
    """Collect what every file of a run states."""
    ids = _ids_by_text(data.tokenizers)
    found: dict[tuple[File, str], list[Token]] = {}
    for config in (*data.configs, *data.tokenizers):
        file = _FILES.get(config.format)
        for role in ROLES if file else ():
            token = _token(config, role, file.states_ids, ids) if file else None
            if file and token:
                found.setdefault((file, role), []).append(token)
    agreed = {key: tokens for key, tokens in found.items() if _agree(tokens)}
    return SpecialTokens(
        tokens={key: tokens[0] for key, tokens in agreed.items()},
        contradicting={key: tuple(t) for key, t in found.items() if key not in agreed},
    )


def _agree(tokens: Sequence[Token]) -> bool:
    return all(token.same_as(tokens[0]) for token in tokens)


def _token(config: RawConfig, role: str, states_ids: bool, ids: Mapping[str, int]) -> Token | None:
    """Return a token a file states; null states none."""
    if states_ids:
        stated = _first(config, (f"{role}_token_id", *(f"{n}.{role}_token_id" for n in NESTED)))
        numbers = _numbers(stated.value) if stated else frozenset[int]()
        return Token(role, numbers, None, stated) if stated and numbers else None
    stated = _first(config, (f"{role}_token", f"{role}_token.content"))
    if stated is None or not isinstance(stated.value, str):
        return None
    known = [ids[stated.value]] if stated.value in ids else []
    return Token(role, frozenset(known), stated.value, stated)


def _first(config: RawConfig, keys: Iterable[str]) -> ConfigValue | None:
    values = (config.values.get(key) for key in keys)
    return next((v for v in values if v is not None and v.value is not None), None)


def _numbers(value: ConfigLeaf) -> frozenset[int]:
    stated = value if isinstance(value, tuple) else (value,)
    return frozenset(v for v in stated if isinstance(v, int) and not isinstance(v, bool))


def _ids_by_text(tokenizers: Iterable[RawConfig]) -> dict[str, int]:
    """Map added tokens to ids; a text that two files give different ids is left out."""
    seen: dict[str, set[int]] = {}
    for config in tokenizers:
        for key, value in config.values.items():
            if config.format == CONFIG and key.startswith(_DECODER) and key.endswith(".content"):
                number = key.removeprefix(_DECODER).removesuffix(".content")
                if number.isdecimal() and isinstance(value.value, str):
                    seen.setdefault(value.value, set()).add(int(number))
            elif config.format == ADDED and isinstance(value.value, int):
                seen.setdefault(key, set()).add(value.value)
    return {text: next(iter(ids)) for text, ids in seen.items() if len(ids) == 1}
