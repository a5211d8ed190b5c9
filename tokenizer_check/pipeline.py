"""Compare normaliser, pre-tokenizer and model settings of tokenizer.json by what they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dumps.readers.tokenizer_content import Json
from tokenizer_check.encoding import normalised, pre_tokens
from tokenizer_check.sample_texts import Sample

if TYPE_CHECKING:
    from tokenizers import Tokenizer

COMPARED = ("normalizer", "pre_tokenizer", "model")
_NO_EFFECT_ON_IDS = frozenset({"trim_offsets"})  # offsets alone


@dataclass(frozen=True, slots=True)
class PartDiff:
    """A section of tokenizer.json that is set otherwise.

    Args:
        path: the first differing setting, such as ``pre_tokenizer.pretokenizers[0].pattern``.
        reference, candidate: its values, as JSON would write them.
        sample: the first text that this section alone treats otherwise; None where none was
            found, or no tokenizer could be loaded.
        results: what both sides make of it.
    """

    part: str
    path: str
    reference: Json
    candidate: Json
    sample: Sample | None
    results: tuple[str, str] | None


def diff_parts(
    reference: Mapping[str, Json],
    candidate: Mapping[str, Json],
    tokenizers: tuple[Tokenizer, Tokenizer] | None,
    samples: Sequence[Sample],
) -> Iterator[PartDiff]:
    """Yield every section that differs, with the first text on which it shows."""
    for part in COMPARED:
        ours, theirs = (_meaning(side.get(part)) for side in (reference, candidate))
        if ours == theirs:
            continue
        path, a, b = _first(part, ours, theirs)
        shown = _shown(part, tokenizers, samples) if tokenizers else None
        yield PartDiff(part, path, a, b, *(shown or (None, None)))


def _meaning(stated: Json) -> Json:
    """Leave out what means the same as nothing, so that spellings of one setting are equal."""
    if isinstance(stated, list):
        return [_meaning(each) for each in stated]
    if not isinstance(stated, dict):
        return stated
    kept: dict[str, Json] = {
        key: inner
        for key, value in stated.items()
        if key not in _NO_EFFECT_ON_IDS
        and (inner := _meaning(value)) not in (None, False, "", [], {})
    }
    if kept.get("type") == "Sequence":
        steps = next((v for v in kept.values() if isinstance(v, list)), [])
        return None if not steps else steps[0] if len(steps) == 1 else kept
    return kept or None


def _first(path: str, ours: Json, theirs: Json) -> tuple[str, Json, Json]:
    """Go down to the first setting that differs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.get("type") != theirs.get("type"):
            return f"{path}.type", ours.get("type"), theirs.get("type")
        key = next(k for k in sorted({*ours, *theirs}) if ours.get(k) != theirs.get(k))
        return _first(f"{path}.{key}", ours.get(key), theirs.get(key))
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        number = next(n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        return _first(f"{path}[{number}]", ours[number], theirs[number])
    return path, ours, theirs


def _shown(
    part: str, tokenizers: tuple[Tokenizer, Tokenizer], samples: Sequence[Sample]
) -> tuple[Sample, tuple[str, str]] | None:
    for sample in samples if part != "model" else ():
        ours, theirs = (_result(part, tokenizer, sample.text) for tokenizer in tokenizers)
        number = next(
            (n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
            min(len(ours), len(theirs)),
        )
        if ours != theirs:
            start = max(0, number - 8) if part == "normalizer" else number
            end = number + 24 if part == "normalizer" else number + 3
            separator = "" if part == "normalizer" else "|"
            return sample, (separator.join(ours[start:end]), separator.join(theirs[start:end]))
    return None


def _result(part: str, tokenizer: Tokenizer, text: str) -> list[str]:
    if part == "normalizer":
        return list(normalised(tokenizer, text))
    return pre_tokens(tokenizer, text)
