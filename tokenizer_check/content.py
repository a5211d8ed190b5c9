"""What a run's tokenizer folders hold: template, merges, vocabulary, added tokens, settings.

A run may hold several copies of its tokenizer, one a checkpoint. Content on which they agree is
the run's; content on which they do not is not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Generic, TypeVar

from align.core.config_value import ConfigLeaf, RawConfig
from align.core.errors import DumpError
from align.core.run import Artifact, ArtifactKind
from dumps.readers.hf_tokenizer import (
    ADDED,
    CONFIG,
    JSON,
    MERGES,
    SENTENCEPIECE,
    SLOTS,
    TEMPLATE,
    TIKTOKEN,
    VOCABULARY,
)
from dumps.readers.sentencepiece_model import SentencePieceModel, read_sentencepiece
from dumps.readers.slot_templates import SlotTemplate, read_slot_templates
from dumps.readers.tokenizer_content import (
    AddedToken,
    Json,
    Merge,
    TokenizerJson,
    added_token,
    read_merges,
    read_template,
    read_tiktoken,
    read_tokenizer_json,
    read_vocabulary,
)
from dumps.store.run_data import RunData

_T = TypeVar("_T")
_DECODER = "added_tokens_decoder."


@dataclass(frozen=True, slots=True)
class Found(Generic[_T]):
    """A value and where it stands."""

    value: _T
    path: Path
    key: str | None = None
    line: int | None = None

    @property
    def place(self) -> str:
        """``file:line``, or the file."""
        return str(self.path) if self.line is None else f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Content:
    """The parsed content of one run's tokenizer; None where no file has it.

    Args:
        begins_with, ends_with: tokens put around every text that is encoded with special tokens.
        parts: the sections of tokenizer.json that cut and change a text.
        tokenizer_class: as tokenizer_config.json names it.
        slots: MindSpeed-RL's templates by name.
        contradicting: by kind of content, the files of this run that disagree.
    """

    template: Found[str] | None
    merges: Found[tuple[Merge, ...]] | None
    vocabulary: Found[Mapping[str, int]] | None
    added: Mapping[str, Found[Mapping[str, AddedToken]]]
    begins_with: Found[tuple[str, ...]] | None
    ends_with: Found[tuple[str, ...]] | None
    padding_side: Found[str] | None
    parts: Found[Mapping[str, Json]] | None
    tokenizer_class: Found[str] | None
    sentencepiece: Found[SentencePieceModel] | None
    slots: Found[Mapping[str, SlotTemplate]] | None
    contradicting: Mapping[str, tuple[Path, ...]]


@dataclass
class _Folder:
    """What one folder's files hold, before the folders of a run are set against each other."""

    configs: list[RawConfig]
    jsons: list[Found[TokenizerJson]]
    vocabularies: list[Found[Mapping[str, int]]]
    merges: list[Found[tuple[Merge, ...]]]
    templates: list[Found[str]]
    sentencepieces: list[Found[SentencePieceModel]]
    ranks: list[Found[Mapping[str, int]]]
    slots: list[Found[Mapping[str, SlotTemplate]]]


def read_content(data: RunData) -> Content:
    """Read the tokenizer files of a run; one that is unreadable goes into its problems."""
    folders = list(_folders(data))
    contradicting: dict[str, tuple[Path, ...]] = {}

    def settled(kind: str, found: Sequence[Found[_T]]) -> Found[_T] | None:
        if all(one.value == found[0].value for one in found):
            return found[0] if found else None
        contradicting[kind] = tuple(one.path for one in found)
        return None

    def each(get: Callable[[_Folder], Found[_T] | None]) -> list[Found[_T]]:
        return [one for folder in folders if (one := get(folder)) is not None]

    return Content(
        template=settled("chat template", each(_template)),
        merges=settled("merges", each(_merges)),
        vocabulary=settled("vocabulary", each(_vocabulary)),
        added={
            kind: agreed
            for kind in (JSON, CONFIG, ADDED)
            if (agreed := settled("added tokens", each(partial(_added, kind=kind))))
        },
        begins_with=settled("begin token", each(_begins_with)),
        ends_with=settled("end token", each(_ends_with)),
        padding_side=settled("padding_side", each(_padding_side)),
        parts=settled("tokenizer.json", each(_parts)),
        tokenizer_class=settled("tokenizer_class", each(_tokenizer_class)),
        sentencepiece=settled(
            "SentencePiece model", each(lambda f: next(iter(f.sentencepieces), None))
        ),
        slots=settled("templates.json", each(lambda f: next(iter(f.slots), None))),
        contradicting=contradicting,
    )


def _folders(data: RunData) -> Iterator[_Folder]:
    configs: dict[Path, list[RawConfig]] = defaultdict(list)
    for config in data.tokenizers:
        configs[Path(config.source).parent].append(config)
    files: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    for artifact in _distinct(data):
        files[artifact.path.parent, artifact.format].append(artifact.path)

    def read(folder: Path, format: str, reader: Callable[[Path], _T]) -> list[Found[_T]]:
        found = []
        for path in files[folder, format]:
            try:
                found.append(Found(reader(path), path))
            except DumpError as error:
                data.problems.append(error)
        return found

    for folder, of_folder in configs.items():
        yield _Folder(
            of_folder,
            read(folder, JSON, read_tokenizer_json),
            read(folder, VOCABULARY, read_vocabulary),
            read(folder, MERGES, read_merges),
            read(folder, TEMPLATE, read_template),
            read(folder, SENTENCEPIECE, read_sentencepiece),
            read(folder, TIKTOKEN, read_tiktoken),
            read(folder, SLOTS, read_slot_templates),
        )


def _distinct(data: RunData) -> Iterator[Artifact]:
    """Yield the large files, of equal ones in several folders only the first."""
    seen = set()
    for artifact in data.run.of_kind(ArtifactKind.TOKENIZER):
        if artifact.format in (CONFIG, ADDED):
            continue
        try:
            digest = blake2b(artifact.path.read_bytes()).digest()
        except OSError as error:
            data.problems.append(
                DumpError(
                    where=str(artifact.path),
                    problem=f"cannot be read ({error.strerror})",
                    fix="check that the file still exists and is readable",
                )
            )
            continue
        if (artifact.format, digest) not in seen:
            seen.add((artifact.format, digest))
            yield artifact


def _of_config(folder: _Folder, key: str) -> Found[ConfigLeaf] | None:
    for config in folder.configs:
        stated = config.values.get(key)
        if config.format == CONFIG and stated is not None:
            return Found(stated.value, Path(config.source), key, stated.provenance.line)
    return None


def _template(folder: _Folder) -> Found[str] | None:
    """Return the default template: chat_template.jinja replaces the configuration's."""
    if folder.templates:
        return folder.templates[0]
    for key in ("chat_template", *_default_template(folder)):
        found = _of_config(folder, key)
        if found is not None and isinstance(found.value, str):
            return Found(found.value, found.path, found.key, found.line)
    return None


def _default_template(folder: _Folder) -> Iterator[str]:
    """Yield the key of the template named "default" where there are several."""
    for config in folder.configs:
        for key, value in config.values.items():
            if key.startswith("chat_template[") and value.value == "default":
                yield key.replace("].name", "].template")


def _merges(folder: _Folder) -> Found[tuple[Merge, ...]] | None:
    for found in folder.jsons:
        if found.value.merges is not None:
            return Found(found.value.merges, found.path, "model.merges")
    return folder.merges[0] if folder.merges else None


def _vocabulary(folder: _Folder) -> Found[Mapping[str, int]] | None:
    for found in folder.jsons:
        if found.value.vocabulary is not None:
            return Found(found.value.vocabulary, found.path, "model.vocab")
    for model in folder.sentencepieces:
        pieces = {piece.text: number for number, piece in enumerate(model.value.pieces)}
        return Found(pieces, model.path, "pieces")
    return next(iter((*folder.vocabularies, *folder.ranks)), None)


def _added(folder: _Folder, kind: str) -> Found[Mapping[str, AddedToken]] | None:
    """Return the added tokens that one kind of file lists."""
    if kind == JSON:
        found = next(iter(folder.jsons), None)
        return Found(found.value.added, found.path, "added_tokens") if found else None
    config = next((c for c in folder.configs if c.format == kind), None)
    tokens = {} if config is None else _decoder(config) if kind == CONFIG else _by_text(config)
    return Found(tokens, Path(config.source)) if config and tokens else None


def _decoder(config: RawConfig) -> dict[str, AddedToken]:
    by_id: dict[str, dict[str, ConfigLeaf]] = defaultdict(dict)
    for key, value in config.values.items():
        number, dot, name = key.removeprefix(_DECODER).partition(".")
        if key.startswith(_DECODER) and dot and number.isdecimal() and len(number) < 10:
            by_id[number][name] = value.value
    return {
        content: added_token({**fields, "id": number})
        for number, fields in by_id.items()
        if isinstance(content := fields.get("content"), str)
    }


def _by_text(config: RawConfig) -> dict[str, AddedToken]:
    numbers = {key: value.value for key, value in config.values.items()}
    return {key: AddedToken(number) for key, number in numbers.items() if isinstance(number, int)}


def _begins_with(folder: _Folder) -> Found[tuple[str, ...]] | None:
    """Return what tokenizer_config.json asks for, else what the post-processor does.

    Which of them counts where the first says no and the second adds one depends on the version
    of transformers: then neither is returned.
    """
    stated = _of_config(folder, "add_bos_token")
    post = next((f for f in folder.jsons if f.value.begins_with is not None), None)
    done = post.value.begins_with if post else None
    if stated is None or not isinstance(stated.value, bool):
        return Found(done, post.path, "post_processor") if post and done is not None else None
    if not stated.value:
        return None if done else Found((), stated.path, stated.key, stated.line)
    bos = _of_config(folder, "bos_token") or _of_config(folder, "bos_token.content")
    if bos is None or not isinstance(bos.value, str):
        return None
    return Found((bos.value,), stated.path, stated.key, stated.line)


def _ends_with(folder: _Folder) -> Found[tuple[str, ...]] | None:
    """Return what the post-processor puts after a text, where add_eos_token does not decide."""
    if _of_config(folder, "add_eos_token") is not None:
        return None
    for found in folder.jsons:
        if found.value.ends_with is not None:
            return Found(found.value.ends_with, found.path, "post_processor")
    return None


def _parts(folder: _Folder) -> Found[Mapping[str, Json]] | None:
    found = next(iter(folder.jsons), None)
    return Found(found.value.parts, found.path) if found else None


def _tokenizer_class(folder: _Folder) -> Found[str] | None:
    stated = _of_config(folder, "tokenizer_class")
    if stated is None or not isinstance(stated.value, str):
        return None
    return Found(stated.value, stated.path, stated.key, stated.line)


def _padding_side(folder: _Folder) -> Found[str] | None:
    stated = _of_config(folder, "padding_side")
    if stated is not None and isinstance(stated.value, str):
        return Found(stated.value, stated.path, stated.key, stated.line)
    for found in folder.jsons:
        if found.value.padding_side is not None:
            return Found(found.value.padding_side, found.path, "padding.direction")
    return None
