"""What the tokenizer rung says about texts that are cut otherwise, in words."""

from __future__ import annotations

import json

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from tokenizer_check.content import Content
from tokenizer_check.encoding import EncodingComparison, first_difference
from tokenizer_check.pipeline import PartDiff

_MAX_SHOWN = 160
_ACTS = Mechanism(Rung.TOKENIZER, Strength.SEMANTIC)
_FIX = Text(
    "Copy the tokenizer folder of the reference to the candidate, and load it with the same "
    "version of transformers.",
    "把参考侧的 tokenizer 目录复制到被测侧，并用相同版本的 transformers 加载。",
)
_WHY = {
    "normalizer": Text(
        "The normaliser rewrites a text before it is cut: characters that look alike, such as "
        "composed and decomposed letters or full-width digits, get other ids.",
        "normalizer 在切分之前改写文本：看起来相同的字符（如组合与分解字符、全角数字）"
        "会得到不同的 id。",
    ),
    "pre_tokenizer": Text(
        "The pre-tokenizer cuts a text into words that merges do not cross: numbers, white space, "
        "punctuation and contractions fall into other tokens, though vocabulary and merges are "
        "the same.",
        "pre-tokenizer 先把文本切成词，merges 不跨词：即使词表与 merges 相同，"
        "数字、空白、标点与缩写也会被切成不同的 token。",
    ),
    "model": Text(
        "Settings of the model decide what happens to unknown text and to words that are tokens "
        "themselves (byte_fallback, fuse_unk, ignore_merges).",
        "model 的设置决定如何处理未知文本，以及本身就是 token 的词"
        "（byte_fallback、fuse_unk、ignore_merges）。",
    ),
}
_NAMES = {
    "normalizer": Text("normaliser", "normalizer"),
    "pre_tokenizer": Text("pre-tokenizer", "pre-tokenizer"),
    "model": Text("model settings", "model 设置"),
}


def part(diff: PartDiff, contents: tuple[Content, Content]) -> Finding:
    """Name the setting that differs, and the first text on which it shows."""
    ours, theirs = _shown(_json(diff.reference), _json(diff.candidate))
    shown = Text("", "")
    if diff.sample is not None and diff.results is not None:
        a, b = (repr(text)[:_MAX_SHOWN] for text in diff.results)
        shown = Text(
            f"; first text that differs ({diff.sample.name.en}): {a} / {b}",
            f"；首个不同的文本（{diff.sample.name.zh}）：{a} / {b}",
        )
    name = _NAMES[diff.part]
    return Finding(
        id=f"tokenizer.{diff.part}",
        rung=Rung.TOKENIZER,
        severity=Severity.WARNING if diff.sample is None else Severity.ERROR,
        title=Text(
            f"{name.en}: {diff.path} is {ours} in the reference, {theirs} in the candidate"
            f"{shown.en}",
            f"{name.zh}：{diff.path} 参考为 {ours}，被测为 {theirs}{shown.zh}",
        ),
        reference=ours,
        candidate=theirs,
        evidence=tuple(
            Evidence(str(content.parts.path), side, key=diff.path, values=(value,))
            for side, content, value in zip(
                (Side.REFERENCE, Side.CANDIDATE), contents, (ours, theirs), strict=True
            )
            if content.parts is not None
        ),
        why=_WHY[diff.part],
        fix=_FIX,
        mechanism=_ACTS,
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _shown(reference: str, candidate: str) -> tuple[str, str]:
    """Cut long settings to what stands around their first difference."""
    if max(len(reference), len(candidate)) <= _MAX_SHOWN:
        return reference, candidate
    start = max(0, (first_difference(reference, candidate) or 0) - _MAX_SHOWN // 2)
    return _window(reference, start), _window(candidate, start)


def _window(text: str, start: int) -> str:
    end = start + _MAX_SHOWN
    return f"{'…' if start else ''}{text[start:end]}{'…' if len(text) > end else ''}"


def encoding(
    encoded: EncodingComparison, contents: tuple[Content, Content], *, is_explained: bool
) -> Finding:
    """Name the first text with other ids, both tokens there, and what is responsible.

    Args:
        is_explained: another finding names the cause, and this one shows its effect.
    """
    first = encoded.diffs[0]
    ours, theirs = (piece.shown() for piece in first.pieces)
    why = first.responsible or Text("not known", "未知")
    return Finding(
        id="tokenizer.encoding",
        rung=Rung.TOKENIZER,
        severity=Severity.INFO if is_explained else Severity.ERROR,
        title=Text(
            f"{len(encoded.diffs)} of {encoded.num_texts} texts have other ids; first "
            f"({first.sample.name.en}), token {first.at + 1}: {ours} in the reference, {theirs} "
            f"in the candidate ({why.en})",
            f"{encoded.num_texts} 段文本中有 {len(encoded.diffs)} 段的 id 不同；首个"
            f"（{first.sample.name.zh}）第 {first.at + 1} 个 token：参考为 {ours}，"
            f"被测为 {theirs}（{why.zh}）",
        ),
        reference=ours,
        candidate=theirs,
        evidence=tuple(
            Evidence(
                source=str(content.vocabulary.path),
                side=side,
                key=content.vocabulary.key,
                values=(first.at, piece.id, piece.token, count),
            )
            for side, content, piece, count in zip(
                (Side.REFERENCE, Side.CANDIDATE),
                contents,
                first.pieces,
                first.num_tokens,
                strict=True,
            )
            if content.vocabulary is not None
        ),
        why=Text(
            "Encoded were fixed texts in several languages, code and formulas, and the prompts "
            "that the runs recorded.",
            "编码了多种语言、代码与公式的固定文本，以及两次运行记录的 prompt。",
        ),
        fix=_FIX,
        mechanism=None if is_explained else _ACTS,
    )
