"""What the tokenizer rung says about vocabulary, merges and added tokens, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from align.core.finding import Evidence, Finding, Mechanism, Scalar, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from dumps.readers.tokenizer_content import AddedToken, Merge, line_of
from tokenizer_check.content import Found
from tokenizer_check.content_diff import AddedDiff, MergesDiff, VocabularyDiff

_FIX = Text(
    "Copy the tokenizer folder of the reference to the candidate (tokenizer.json, or vocab.json "
    "and merges.txt, with tokenizer_config.json), then start again from step 0.",
    "把参考侧的 tokenizer 目录复制到被测侧（tokenizer.json，或 vocab.json 与 merges.txt，"
    "以及 tokenizer_config.json），然后从第 0 步重新开始。",
)
_ACTS = Mechanism(Rung.TOKENIZER, Strength.SEMANTIC)


def merges(
    diff: MergesDiff, reference: Found[tuple[Merge, ...]], candidate: Found[tuple[Merge, ...]]
) -> Finding:
    """Name the first differing merge, and how many one side alone has."""
    ours, theirs = _merge(diff.reference), _merge(diff.candidate)
    alone = diff.num_only_reference, diff.num_only_candidate
    return Finding(
        id="tokenizer.merges",
        rung=Rung.TOKENIZER,
        severity=Severity.ERROR,
        title=Text(
            f"merge {diff.rank + 1} is {ours or 'absent'} in the reference, {theirs or 'absent'} "
            f"in the candidate; merges only in the reference: {alone[0]}, only in the candidate: "
            f"{alone[1]}",
            f"第 {diff.rank + 1} 条 merge：参考为 {ours or '无'}，被测为 {theirs or '无'}；"
            f"仅参考有 {alone[0]} 条，仅被测有 {alone[1]} 条",
        ),
        reference=ours,
        candidate=theirs,
        evidence=(
            _entry(reference, Side.REFERENCE, diff.reference, diff.rank, ours),
            _entry(candidate, Side.CANDIDATE, diff.candidate, diff.rank, theirs),
        ),
        why=Text(
            "Merges, in their order, decide into which tokens a word falls: words that use the "
            "merge have other ids and another number of tokens, in prompts and in what the "
            "trainer encodes.",
            "merges 及其顺序决定一个词被切成哪些 token：用到该 merge 的词 id 与 token 数都会不同，"
            "prompt 与训练侧编码的文本都受影响。",
        ),
        fix=_FIX,
        mechanism=_ACTS,
    )


def _merge(merge: Merge | None) -> str | None:
    return None if merge is None else f"{merge[0]!r} + {merge[1]!r}"


def _entry(
    found: Found[tuple[Merge, ...]], side: Side, merge: Merge | None, rank: int, shown: str | None
) -> Evidence:
    return Evidence(
        source=str(found.path),
        side=side,
        line=None if merge is None else line_of(found.path, merge),
        key=f"{found.key}[{rank}]" if found.key else None,
        values=(shown, len(found.value)),
    )


def vocabulary(
    diff: VocabularyDiff, reference: Found[Mapping[str, int]], candidate: Found[Mapping[str, int]]
) -> Finding:
    """Name the differing token with the lowest id, and count the others."""
    ours, theirs = diff.reference, diff.candidate
    sides = ((Side.REFERENCE, reference, ours), (Side.CANDIDATE, candidate, theirs))
    return Finding(
        id="tokenizer.vocabulary",
        rung=Rung.TOKENIZER,
        severity=Severity.ERROR,
        title=Text(
            f"token {diff.token!r} has id {_or(ours, 'none')} in the reference, "
            f"{_or(theirs, 'none')} in the candidate; {diff.num_other_id} tokens have another id, "
            f"{diff.num_only_reference} are only in the reference, {diff.num_only_candidate} only "
            "in the candidate",
            f"token {diff.token!r} 的 id：参考为 {_or(ours, '无')}，被测为 {_or(theirs, '无')}；"
            f"id 不同的 token 有 {diff.num_other_id} 个，仅参考有 {diff.num_only_reference} 个，"
            f"仅被测有 {diff.num_only_candidate} 个",
        ),
        reference=ours,
        candidate=theirs,
        evidence=tuple(
            Evidence(
                source=str(found.path),
                side=side,
                line=None if number is None else line_of(found.path, diff.token),
                key=found.key,
                values=(number, len(found.value)),
            )
            for side, found, number in sides
        ),
        why=Text(
            "An id is a row of the embedding: under another id the model reads another word, and "
            "what it writes is decoded as another word.",
            "id 对应 embedding 的一行：id 不同，模型读到的就是另一个词，"
            "它的输出也会解码成另一个词。",
        ),
        fix=_FIX,
        mechanism=_ACTS,
    )


def added_tokens(
    diff: AddedDiff,
    reference: Found[Mapping[str, AddedToken]],
    candidate: Found[Mapping[str, AddedToken]],
) -> Finding:
    """Name the first added token with another id, on one side only, or with another flag."""
    token, ours, theirs, what = _first(diff)
    num_all = len(diff.other_id) + len(diff.only_one_side) + len(diff.other_flags)
    sides = ((Side.REFERENCE, reference, ours), (Side.CANDIDATE, candidate, theirs))
    return Finding(
        id="tokenizer.added_tokens",
        rung=Rung.TOKENIZER,
        severity=Severity.ERROR if diff.other_id else Severity.WARNING,
        title=Text(
            f"added token {token!r}: {what.en} {_or(ours, 'none')} in the reference, "
            f"{_or(theirs, 'none')} in the candidate; {num_all} differences in added tokens",
            f"附加 token {token!r} 的 {what.zh}：参考为 {_or(ours, '无')}，"
            f"被测为 {_or(theirs, '无')}；附加 token 共有 {num_all} 处差异",
        ),
        reference=ours,
        candidate=theirs,
        evidence=tuple(
            Evidence(
                source=str(found.path),
                side=side,
                line=line_of(found.path, token) if token in found.value else None,
                key=found.key,
                values=(token, value),
            )
            for side, found, value in sides
        ),
        why=Text(
            "An added token is cut out of a text before merges apply, with the spaces its flags "
            "say; as a special token it is left out of decoded responses. Texts that contain it "
            "have other ids.",
            "附加 token 在应用 merges 之前就从文本中切出，两侧空格由其标志决定；"
            "作为特殊 token 时，解码后的回复会略去它。含有它的文本 id 不同。",
        ),
        fix=_FIX,
        mechanism=_ACTS,
    )


def _first(diff: AddedDiff) -> tuple[str, Scalar, Scalar, Text]:
    number = Text("id", "id")
    for token, ids in (*diff.other_id.items(), *diff.only_one_side.items()):
        return token, ids[0], ids[1], number
    token, (flag, ours, theirs) = next(iter(diff.other_flags.items()))
    return token, ours, theirs, Text(flag, flag)


def padding_side(reference: Found[str], candidate: Found[str]) -> Finding:
    """Say that the tokenizers pad on different sides."""
    return Finding(
        id="tokenizer.padding_side",
        rung=Rung.TOKENIZER,
        severity=Severity.WARNING,
        title=Text(
            f"padding_side is {reference.value} in the reference, {candidate.value} in the "
            "candidate",
            f"padding_side：参考为 {reference.value}，被测为 {candidate.value}",
        ),
        reference=reference.value,
        candidate=candidate.value,
        evidence=tuple(
            Evidence(str(found.path), side, found.line, found.key, values=(found.value,))
            for side, found in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
        ),
        why=Text(
            "A trainer that lets the tokenizer pad prompts on the right puts padding between "
            "prompt and response: the first response token is predicted from padding. One that "
            "pads itself, as verl does, is not affected.",
            "若训练器让 tokenizer 在右侧填充 prompt，prompt 与回复之间会隔着填充符，"
            "回复的第一个 token 由填充符预测。自行填充的训练器（如 verl）不受影响。",
        ),
        fix=Text("Set padding_side=left on both sides.", "两侧都设置 padding_side=left。"),
        mechanism=Mechanism(Rung.TOKENS, Strength.SEMANTIC),
    )


def ends_with(reference: Found[tuple[str, ...]], candidate: Found[tuple[str, ...]]) -> Finding:
    """Say what the post-processor puts after a text."""
    ours, theirs = (" ".join(found.value) or None for found in (reference, candidate))
    return Finding(
        id="tokenizer.post_processor",
        rung=Rung.TOKENIZER,
        severity=Severity.WARNING,
        title=Text(
            f"the post-processor puts {ours or 'nothing'} after a text in the reference, "
            f"{theirs or 'nothing'} in the candidate",
            f"post-processor 在文本后加入的 token：参考为 {ours or '无'}，被测为 {theirs or '无'}",
        ),
        reference=ours,
        candidate=theirs,
        evidence=tuple(
            Evidence(str(found.path), side, found.line, found.key, values=found.value)
            for side, found in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
        ),
        why=Text(
            "An end token after every encoded text closes the prompt before the model answers, and "
            "counts as a token of labels. A trainer that encodes with add_special_tokens=False is "
            "not affected.",
            "若每段编码文本后都加结束符，prompt 会在模型回答前就被结束，标签也会多一个 token。"
            "以 add_special_tokens=False 编码的训练器不受影响。",
        ),
        fix=Text(
            "Encode with add_special_tokens=False on both sides, and use one tokenizer.json.",
            "两侧都用 add_special_tokens=False 编码，并使用同一个 tokenizer.json。",
        ),
        mechanism=_ACTS,
    )


def contradictions(
    reference: Mapping[str, tuple[Path, ...]], candidate: Mapping[str, tuple[Path, ...]]
) -> Iterator[Finding]:
    """Name what the tokenizers within one run disagree on; none of it was compared."""
    kinds = ", ".join(dict.fromkeys((*reference, *candidate)))
    if not kinds:
        return
    yield Finding(
        id="tokenizer.several_tokenizers",
        rung=Rung.TOKENIZER,
        severity=Severity.INFO,
        title=Text(
            f"the folders of one run hold different tokenizers: {kinds}",
            f"同一次运行的目录中有不同的 tokenizer：{kinds}",
        ),
        reference=len(reference),
        candidate=len(candidate),
        evidence=tuple(
            Evidence(str(path), side, key=kind)
            for side, found in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
            for kind, paths in found.items()
            for path in paths
        ),
        why=Text(
            "Which of them the run loads is not known, so none of them was compared.",
            "无法得知运行实际加载的是哪一个，因此均未比较。",
        ),
        fix=Text(
            "Keep only the tokenizer the run really loads in its run folder.",
            "运行目录中请只保留该次运行实际加载的 tokenizer。",
        ),
    )


def _or(value: Scalar, absent: str) -> str:
    return absent if value is None else str(value)
