"""Make a tokenizer that encodes of what a run's files hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from align.core.errors import MissingPackageError
from align.core.optional import require
from align.core.text import Text
from dumps.readers.sentencepiece_model import PieceType, SentencePieceModel
from dumps.readers.tokenizer_content import AddedToken, Merge
from tokenizer_check.content import Content

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPACE = "\u2581"  # what SentencePiece writes for a space

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BY_CLASS: Mapping[str, tuple[str, bool]] = {
    "Qwen2Tokenizer": (_QWEN2_WORDS, True),
    "Qwen2TokenizerFast": (_QWEN2_WORDS, True),
    "GPT2Tokenizer": (_GPT2_WORDS, False),
    "GPT2TokenizerFast": (_GPT2_WORDS, False),
}
"""Where a text is cut before merges apply, and whether it is put into Unicode form NFC first, by
the class that vocab.json and merges.txt belong to. Source: those classes of transformers 5.10."""


def load(content: Content) -> Tokenizer | Text:
    """Return the tokenizer of one run, or why there is none."""
    try:
        library = require("tokenizers", extra="torch")
    except MissingPackageError:
        return Text(
            "the package tokenizers is not installed (pip install tokenizers)",
            "未安装 tokenizers 包（pip install tokenizers）",
        )
    try:
        return _load(content, library)
    except Exception as error:  # tokenizers raises bare Exception on a file it cannot parse
        if type(error) not in (Exception, ValueError):
            raise
        return Text(f"it cannot be loaded ({error})", f"无法加载（{error}）")


def _load(content: Content, library: Any) -> Tokenizer | Text:
    if content.parts is not None and content.vocabulary is not None:
        whole: Tokenizer = library.Tokenizer.from_file(str(content.parts.path))
        whole.no_padding()
        whole.no_truncation()
        return whole
    if content.sentencepiece is not None:
        return _with_added(
            _of_sentencepiece(content.sentencepiece.value, library), content, library
        )
    if content.vocabulary is None or content.merges is None:
        return Text("vocabulary or merges are not in the files", "文件中缺少词表或 merges")
    name = content.tokenizer_class.value if content.tokenizer_class else None
    if name is None or name not in _BY_CLASS:
        return Text(
            f"tokenizer.json is missing, and the pre-tokenizer of {name or 'the class'} is not in "
            "the other files",
            f"缺少 tokenizer.json，而其余文件不含 {name or '该类'} 的 pre-tokenizer",
        )
    return _with_added(
        _of_merges(content.vocabulary.value, content.merges.value, *_BY_CLASS[name], library),
        content,
        library,
    )


def _of_merges(
    vocabulary: Mapping[str, int],
    merges: Sequence[Merge],
    words: str,
    is_nfc: bool,
    library: Any,
) -> Tokenizer:
    made: Tokenizer = library.Tokenizer(library.models.BPE(dict(vocabulary), list(merges)))
    if is_nfc:
        made.normalizer = library.normalizers.NFC()
    made.pre_tokenizer = library.pre_tokenizers.Sequence(
        [
            library.pre_tokenizers.Split(library.Regex(words), "isolated"),
            library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = library.decoders.ByteLevel()
    return made


def _of_sentencepiece(model: SentencePieceModel, library: Any) -> Tokenizer:
    """Build the model, with the normalizer that its file states.

    Raises:
        ValueError: It is of a kind that cuts words by other means.
    """
    vocabulary = {piece.text: number for number, piece in enumerate(model.pieces)}
    unknown = model.pieces[max(0, model.roles["unk"])].text
    if model.kind == "unigram":
        scored = [(piece.text, piece.score) for piece in model.pieces]
        inner = library.models.Unigram(scored, model.roles["unk"], model.byte_fallback)
    elif model.kind == "bpe":
        inner = library.models.BPE(
            vocabulary,
            list(merges_of_pieces(model)),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
    else:
        raise ValueError(f"a SentencePiece model of kind {model.kind}")
    made: Tokenizer = library.Tokenizer(inner)
    steps = [library.normalizers.Precompiled(model.normalizer_map)] if model.normalizer_map else []
    if model.normalizer["remove_extra_whitespaces"]:
        steps += [
            library.normalizers.Strip(),
            library.normalizers.Replace(library.Regex(" {2,}"), " "),
        ]
    if model.normalizer["add_dummy_prefix"]:
        steps.append(library.normalizers.Prepend(_SPACE))
    made.normalizer = library.normalizers.Sequence(
        [*steps, library.normalizers.Replace(" ", _SPACE)]
    )
    made.decoder = library.decoders.Metaspace()
    special = [
        piece.text
        for piece in model.pieces
        if piece.type in (PieceType.CONTROL, PieceType.USER_DEFINED)
    ]
    made.add_tokens([library.AddedToken(text, normalized=False) for text in special])
    return made


def merges_of_pieces(model: SentencePieceModel) -> Iterator[Merge]:
    """Yield the merges that SentencePiece's BPE makes, best first.

    It joins the neighbours whose union is the piece with the best score; so every way to cut a
    piece into two pieces is a merge, in the order of the whole's score.
    """
    scores = {p.text: p.score for p in model.pieces if p.type == PieceType.NORMAL}
    order = {text: number for number, text in enumerate(scores)}
    for whole in sorted(scores, key=lambda text: (-scores[text], order[text])):
        cuts = ((whole[:n], whole[n:]) for n in range(1, len(whole)))
        known = [(a, b) for a, b in cuts if a in scores and b in scores]
        yield from sorted(known, key=lambda pair: (order[pair[0]], order[pair[1]]))


def _with_added(made: Tokenizer, content: Content, library: Any) -> Tokenizer:
    """Add the tokens that the other files list, in the order of their ids."""
    listed: dict[str, AddedToken] = {}
    for found in content.added.values():
        listed = {**found.value, **listed}
    made.add_tokens(
        [
            library.AddedToken(text, **{"normalized": False, **token.flags})
            for text, token in sorted(listed.items(), key=lambda item: item[1].id)
        ]
    )
    return made
