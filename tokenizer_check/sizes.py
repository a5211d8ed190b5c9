"""How many tokens there are, and how many rows the model has for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from align.core.config_value import ConfigValue, RawConfig
from dumps.readers.embedding_rows import embedding_rows
from dumps.store.run_data import RunData
from tokenizer_check.content import Content
from tokenizer_check.special_tokens import NESTED

_VOCAB_SIZE = ("vocab_size", *(f"{name}.vocab_size" for name in NESTED))
_PADDED = ("padded_vocab_size", "pad_vocab_size_to")


@dataclass(frozen=True, slots=True)
class Sizes:
    """One run's sizes; None where no file says.

    Args:
        num_tokens: len(tokenizer): vocabulary and added tokens, each text once.
        num_ids: largest id + 1.
        vocab_size: of config.json.
        padded: of a training configuration that states it.
        rows: of the embedding in the weights, with the file.
        largest_seen: largest id in recorded rows.
    """

    num_tokens: int | None
    num_ids: int | None
    vocab_size: int | None
    padded: int | None
    rows: int | None
    rows_source: str | None
    largest_seen: int | None

    @property
    def model_rows(self) -> int | None:
        """Rows an id can point to: those of the weights, else what the files state."""
        stated = (self.rows, self.padded, self.vocab_size)
        return next((number for number in stated if number is not None), None)

    @property
    def is_mismatch(self) -> bool | None:
        """Whether ids have no row, or the weights fewer rows than stated; None if not known."""
        if self.rows is not None and self.vocab_size is not None and self.rows < self.vocab_size:
            return True
        used = max((n for n in (self.num_ids, self._num_seen) if n is not None), default=None)
        if used is None or self.model_rows is None:
            return None
        return used > self.model_rows

    @property
    def num_unused(self) -> int | None:
        """Rows beyond the last id: padding."""
        if self.num_ids is None or self.model_rows is None:
            return None
        return max(0, self.model_rows - self.num_ids)

    @property
    def _num_seen(self) -> int | None:
        return None if self.largest_seen is None else self.largest_seen + 1


def sizes(data: RunData, content: Content, largest_seen: int) -> Sizes:
    """Collect one run's sizes; ``largest_seen`` is -1 where no ids were recorded."""
    tokens = _ids_by_token(content)
    rows = next(_rows(data), None)
    return Sizes(
        num_tokens=len(tokens) or None,
        num_ids=max(tokens.values()) + 1 if tokens else None,
        vocab_size=_agreed(_vocab_sizes(data.configs)),
        padded=_agreed(_padded_sizes(data.configs)),
        rows=rows[0] if rows else None,
        rows_source=rows[1] if rows else None,
        largest_seen=largest_seen if largest_seen >= 0 else None,
    )


def _ids_by_token(content: Content) -> dict[str, int]:
    """Return every token; without a vocabulary none, as added tokens alone say no size."""
    if content.vocabulary is None:
        return {}
    tokens = dict(content.vocabulary.value)
    for found in content.added.values():
        tokens.update({text: added.id for text, added in found.value.items()})
    return tokens


def _agreed(stated: Iterable[ConfigValue]) -> int | None:
    """Return what all files state; None where they state none or contradict each other."""
    found = {v.value for v in stated if isinstance(v.value, int) and not isinstance(v.value, bool)}
    return found.pop() if len(found) == 1 else None


def _vocab_sizes(configs: Iterable[RawConfig]) -> Iterator[ConfigValue]:
    for config in configs:
        stated = (config.values.get(key) for key in _VOCAB_SIZE)
        first = next((value for value in stated if value is not None), None)
        if config.format == "hf_config" and first is not None:
            yield first


def _padded_sizes(configs: Iterable[RawConfig]) -> Iterator[ConfigValue]:
    for config in configs:
        yield from (v for key, v in config.values.items() if key.rpartition(".")[2] in _PADDED)


def _rows(data: RunData) -> Iterator[tuple[int, str]]:
    """Yield the rows of embeddings in the run's weights, and the file."""
    files: list[Path] = [
        *(unknown.path for unknown in data.run.unknown),
        *(artifact.path for artifact in data.run.artifacts),
    ]
    for path in sorted({p for p in files if p.suffix == ".safetensors"}):
        for number in embedding_rows(path).values():
            yield number, str(path)
