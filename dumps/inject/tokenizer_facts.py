"""What two tokenizers must agree on for recorded ids to mean the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dumps.inject.problem import Problem
from dumps.store.atomic import write_atomic

FILE_NAME = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """A tokenizer.

    Args:
        vocabulary: token -> id, added tokens included.
        eos: token that ends a response; None where its files do not say.
    """

    vocabulary: Mapping[str, int]
    eos: str | None


def differences(recorded: TokenizerFacts, own: TokenizerFacts) -> Iterator[Problem]:
    """Yield how a candidate's tokenizer differs from the one the ids were recorded with."""
    theirs, ours = recorded.vocabulary, own.vocabulary
    moved = sorted(token for token in theirs if ours.get(token) != theirs[token])
    if moved:
        token = moved[0]
        yield Problem(
            f"the tokenizer differs: {len(moved)} of {len(theirs)} tokens have other ids or none "
            f"({token!r}: {theirs[token]} recorded, {ours.get(token, 'no id')} here)"
        )
    if recorded.eos is not None and own.eos is not None and recorded.eos != own.eos:
        yield Problem(f"the tokenizer's eos differs: {recorded.eos!r} recorded, {own.eos!r} here")


def write_facts(folder: Path, facts: TokenizerFacts) -> None:
    """Write them down for the training processes."""
    write_atomic(folder / FILE_NAME, json.dumps(asdict(facts)))


def read_facts(folder: Path) -> TokenizerFacts | None:
    """Return what was written, None where nothing was."""
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    return TokenizerFacts(**json.loads(path.read_text(encoding="utf-8")))


def facts_of(tokenizer: Any) -> TokenizerFacts | None:
    """Return the facts of a transformers tokenizer, None where it is of another kind."""
    if not hasattr(tokenizer, "get_vocab"):
        return None
    eos = getattr(tokenizer, "eos_token", None)
    return TokenizerFacts(dict(tokenizer.get_vocab()), None if eos is None else str(eos))
