"""What the tokenizer rung says, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text, joined
from tokenizer_check.comparison import Comparison, Pair
from tokenizer_check.special_tokens import OF_TOKENIZER, Token

_FIX = Text(
    "Load tokenizer, config.json and generation_config.json of one and the same model on both "
    "sides; a folder's name does not prove which model it holds (base or instruct). Then start "
    "again from step 0.",
    "两侧请加载同一个模型的 tokenizer、config.json 与 generation_config.json；"
    "目录名不能证明其中是哪个模型（base 还是 instruct）。修改后从第 0 步重新开始。",
)
_NO_FIX = Text("Nothing to change.", "无需修改。")
_EOS_WHY = Text(
    "The end token tells the rollout engine where to stop and the trainer where a response ends. "
    "An end token that the trainer takes for padding is stripped from every response, so the "
    "model is no longer rewarded for stopping: response length then falls (to 0 within 500 steps "
    "in a case from the field); one that the engine does not know lets responses run to the "
    "length limit.",
    "结束符决定推理引擎在何处停止，也决定训练侧认为回复在何处结束。"
    "若训练侧把结束符当作填充符，它会从每条回复中被去掉，模型不再因停止而得到奖励，"
    "回复长度随之下降（现场案例中 500 步内降为 0）；"
    "若推理引擎不认识它，回复会一直生成到长度上限。",
)
_EOS_UNUSED = Text(
    "What counts before it agrees on both sides: generation_config.json before config.json, "
    "tokenizer_config.json before special_tokens_map.json. Such a folder was put together from "
    "two models.",
    "优先于它的文件两侧一致：generation_config.json 优先于 config.json，"
    "tokenizer_config.json 优先于 special_tokens_map.json。这样的目录可能由两个模型拼成。",
)
_PAD_WHY = Text(
    "On one side padding and end token are one token, on the other they are two. Where they are "
    "one, a trainer that cuts or masks padding loses the end of every response, or gives one to "
    "responses that were cut off.",
    "一侧填充符与结束符相同，另一侧不同。二者相同时，截去或屏蔽填充的训练器会丢失每条回复的结束符，"
    "或给被截断的回复补上结束符。",
)
_PAD_MASKED = Text(
    "Padding is masked, and on neither side it is the end token, as far as the files say: the "
    "numbers stay the same.",
    "填充会被屏蔽，且据文件所示两侧的填充符都不是结束符：数值不变。",
)
_BOS_WHY = Text(
    "A tokenizer that puts a begin token before every prompt gives the model other input ids; one "
    "that adds none is not affected.",
    "若 tokenizer 在每条 prompt 前加起始符，模型的输入 id 会不同；不加起始符的则不受影响。",
)
_BOS_UNUSED = Text(
    "Prompts get the tokenizer's begin token, not this one; it is used where a prompt is empty.",
    "prompt 使用 tokenizer 的起始符，而非此处的值；它只在 prompt 为空时使用。",
)
_UNK_WHY = Text(
    "A byte-level tokenizer has an id for every text and never uses it.",
    "字节级 tokenizer 能编码任何文本，不会用到它。",
)


def findings(comparison: Comparison, consequences: Sequence[Text] = ()) -> tuple[Finding, ...]:
    """Say what differs, each role once, and which files contradict each other.

    Args:
        consequences: what the ends of responses come to, said where eos or pad differ.
    """
    said = (
        _eos(comparison, consequences),
        _pad(comparison, () if comparison.decisive("eos") else consequences),
        _bos(comparison),
        _unk(comparison),
    )
    return (*(finding for finding in said if finding), *_contradictions(comparison))


def _eos(comparison: Comparison, consequences: Sequence[Text]) -> Finding | None:
    pairs = comparison.differing("eos")
    if not pairs:
        return None
    decisive = comparison.decisive("eos")
    if not decisive:
        return _finding(pairs, pairs[0], Severity.INFO, _EOS_UNUSED)
    notes = [_EOS_WHY, *_where_padding_is_eos(comparison), *consequences]
    return _finding(
        pairs,
        decisive[0],
        Severity.ERROR,
        _together(notes),
        Mechanism(Rung.ROLLOUT, Strength.SEMANTIC),
    )


def _where_padding_is_eos(comparison: Comparison) -> Iterator[Text]:
    """Say what strips the end token: padding that is it, on the same side or on the other."""
    names = (Text("reference", "参考"), Text("candidate", "被测"))
    sides = (comparison.reference, comparison.candidate)
    for own, tokens in zip(names, sides, strict=True):
        if tokens.pad_is_eos:
            yield Text(
                f"In the {own.en} end token and padding are one token.",
                f"{own.zh}的结束符与填充符是同一个 token。",
            )
    for own, other, tokens, theirs in zip(names, names[::-1], sides, sides[::-1], strict=True):
        if tokens.eos and theirs.pad and tokens.eos.same_as(theirs.pad):
            yield Text(
                f"The {own.en}'s end token is the {other.en}'s padding.",
                f"{own.zh}的结束符正是{other.zh}的填充符。",
            )


def _together(notes: Sequence[Text]) -> Text:
    return Text(" ".join(n.en for n in notes), "".join(n.zh for n in notes))


def _pad(comparison: Comparison, consequences: Sequence[Text]) -> Finding | None:
    pairs = comparison.differing("pad")
    if not pairs:
        return None
    is_eos = comparison.reference.pad_is_eos, comparison.candidate.pad_is_eos
    if True in is_eos and False in is_eos:
        mechanism = Mechanism(Rung.TOKENS, Strength.SEMANTIC)
        why = _together([_PAD_WHY, *consequences])
        return _finding(pairs, pairs[0], Severity.WARNING, why, mechanism)
    return _finding(pairs, pairs[0], Severity.INFO, _PAD_MASKED)


def _bos(comparison: Comparison) -> Finding | None:
    pairs = comparison.differing("bos")
    if not pairs:
        return None
    of_tokenizer = [p for p in comparison.decisive("bos") if p.file in OF_TOKENIZER]
    if not of_tokenizer:
        return _finding(pairs, pairs[0], Severity.INFO, _BOS_UNUSED)
    mechanism = Mechanism(Rung.TOKENIZER, Strength.SEMANTIC)
    return _finding(pairs, of_tokenizer[0], Severity.WARNING, _BOS_WHY, mechanism)


def _unk(comparison: Comparison) -> Finding | None:
    pairs = comparison.differing("unk")
    return _finding(pairs, pairs[0], Severity.INFO, _UNK_WHY) if pairs else None


def _finding(
    pairs: Sequence[Pair],
    main: Pair,
    severity: Severity,
    why: Text,
    mechanism: Mechanism | None = None,
) -> Finding:
    assert main.reference is not None and main.candidate is not None
    reference, candidate = main.reference.shown(), main.candidate.shown()
    name = f"{main.role}_token_id"
    return Finding(
        id=f"tokenizer.{name}",
        rung=Rung.TOKENIZER,
        severity=severity,
        title=Text(
            f"{name} in {main.file.value}: {reference} in the reference, {candidate} in the "
            "candidate",
            f"{main.file.value} 中的 {name}：参考为 {reference}，被测为 {candidate}",
        ),
        reference=reference,
        candidate=candidate,
        evidence=tuple(_evidence(pairs)),
        why=why,
        fix=_FIX if mechanism else _NO_FIX,
        mechanism=mechanism,
    )


def _evidence(pairs: Sequence[Pair]) -> Iterator[Evidence]:
    for pair in pairs:
        for side, token in ((Side.REFERENCE, pair.reference), (Side.CANDIDATE, pair.candidate)):
            if token is not None:
                yield _place(token, side)


def _place(token: Token, side: Side) -> Evidence:
    stated = token.stated
    return Evidence(
        source=stated.provenance.source,
        side=side,
        line=stated.provenance.line,
        key=stated.key,
        text=stated.provenance.text,
        values=(token.shown(),),
    )


def _contradictions(comparison: Comparison) -> Iterator[Finding]:
    """Name the files of one run that contradict each other; none of them was compared."""
    sides = ((Side.REFERENCE, comparison.reference), (Side.CANDIDATE, comparison.candidate))
    found = [
        (side, token)
        for side, tokens in sides
        for contradicting in tokens.contradicting.values()
        for token in contradicting
    ]
    if not found:
        return
    roles = {f"{token.role}_token_id": None for _, token in found}
    names = joined(Text(role, role) for role in roles)
    yield Finding(
        id="tokenizer.contradicting_files",
        rung=Rung.TOKENIZER,
        severity=Severity.INFO,
        title=Text(
            f"files of one run contradict each other: {names.en}",
            f"同一次运行的文件相互矛盾：{names.zh}",
        ),
        reference=sum(side is Side.REFERENCE for side, _ in found),
        candidate=sum(side is Side.CANDIDATE for side, _ in found),
        evidence=tuple(_place(token, side) for side, token in found),
        why=Text(
            "Which of them the run loads is not known, so none of them was compared.",
            "无法得知运行实际加载的是哪一个，因此均未比较。",
        ),
        fix=Text(
            "Keep only the files the run really loads in its run folder.",
            "运行目录中请只保留该次运行实际加载的文件。",
        ),
    )
