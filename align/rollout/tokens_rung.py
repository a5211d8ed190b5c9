"""Tokens rung: is the trainer given what the rollout engine produced, on each side by itself?

The invariants hold within one run, so no response needs a twin in the other. A defect of one side
is a difference; the same defect on both sides is none. Prompts are compared across the runs: where
their ids differ at equal text, tokenizer or template differ, and the earlier rungs say why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.rollout.token_checks import Checked, Vocabulary, check
from align.rollout.token_defects import Broken, Defect
from align.rollout.token_diff import Difference
from align.rollout.token_diff_texts import WORDING as DIFFERENCES
from align.rollout.token_row import Ids
from align.rollout.token_rows import EngineRow, TokenRows, token_rows
from align.rollout.token_spans import spans
from align.rollout.token_texts import WORDING
from align.rollout.token_tokenizer import decoder, num_ids, special_ids, tokenizer_of
from dumps.store.run_data import RunData

_QUOTED = 3
_PAD_HIDES_EOS = Text(
    "This side pads with the id of eos, the other does not, so whatever masks padding masks eos: "
    "no gradient reaches the decision to stop. The tokenizer rung names the pad token.",
    "该侧补齐用的 id 就是 eos，另一侧不是，因此屏蔽补齐时 eos 也被屏蔽："
    "“停止”这一决策得不到梯度。pad token 的差异见 tokenizer 环节。",
)
_PROMPT_LENGTHS = ("prompt_length/*",)
_LENGTHS = ("response_length/*", "response_length_non_aborted/*")
_IN = {
    Side.REFERENCE: Text("in the reference", "参考"),
    Side.CANDIDATE: Text("in the candidate", "被测"),
    Side.BOTH: Text("on both sides alike", "两侧均有"),
}


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Check the trainer inputs of both runs against their rollouts."""
    rows = {Side.REFERENCE: token_rows(reference), Side.CANDIDATE: token_rows(candidate)}
    tokenizers = {
        Side.REFERENCE: tokenizer_of(reference),
        Side.CANDIDATE: tokenizer_of(candidate),
    }
    return compare_rows(
        rows, tokenizers, tokenizers_stated=bool(reference.tokenizers and candidate.tokenizers)
    )


def compare_rows(
    rows: Mapping[Side, TokenRows],
    tokenizers: Mapping[Side, Any | None],
    *,
    tokenizers_stated: bool = False,
) -> RungResult:
    """Check each side's rows by themselves, and its trainer's against its engine's.

    Args:
        tokenizers: of the `tokenizers` library; None where a side's is not known.
        tokenizers_stated: both runs have tokenizer files, which the tokenizer rung compares.
    """
    lacking = [
        side
        for side, tokens in rows.items()
        if not (tokens.plain or (tokens.trainer and tokens.engine))
    ]
    missing = tuple(missing_artifact(Rung.TOKENS, side) for side in _named(lacking))
    unread = tuple(why for tokens in rows.values() for why in tokens.unread)
    if not any(tokens.trainer or tokens.plain for tokens in rows.values()):
        return _not_compared(missing, unread)
    checked = {side: _checked(rows[side], tokenizers[side]) for side in rows}
    found = (*_defects(checked, tokenizers_stated), *_prompts(rows), *_masks(rows))
    return RungResult(
        name=Rung.TOKENS,
        status=_status(checked, found, lacking),
        summary=_summary(checked, found, unread),
        findings=found,
        missing=missing,
    )


def _named(lacking: Sequence[Side]) -> tuple[str, ...]:
    if len(lacking) > 1:
        return (Side.BOTH.value,)
    return tuple(side.value for side in lacking)


def _status(
    checked: Mapping[Side, Checked], found: Sequence[Finding], lacking: Sequence[Side]
) -> RungStatus:
    if any(finding.severity is Severity.ERROR for finding in found):
        return RungStatus.DIVERGED
    if lacking:
        return RungStatus.MISSING
    alone = any(finding.severity is Severity.WARNING for finding in found)
    whole = all(side.num_matched == side.num_rows for side in checked.values())
    return RungStatus.ALIGNED if whole and not alone else RungStatus.UNDECIDED


def _checked(rows: TokenRows, tokenizer: Any | None) -> Checked:
    special = special_ids(tokenizer)
    if tokenizer is None or special is None:
        return check(rows, None)
    return check(rows, Vocabulary(decoder(tokenizer, special=False), num_ids(tokenizer), special))


def _defects(checked: Mapping[Side, Checked], tokenizers_stated: bool) -> list[Finding]:
    """Make a finding of each defect; one that the tokenizer rung explains is left to it."""
    found = []
    for defect in Defect:
        by_side = {
            side: tuple(b for b in seen.broken if b.defect is defect)
            for side, seen in checked.items()
        }
        broken = tuple(b for rows in by_side.values() for b in rows)
        if broken:
            finding = _finding(defect, by_side, checked)
            if tokenizers_stated and _pad_hides_eos(broken, by_side, checked):
                finding = replace(finding, severity=Severity.WARNING, why=_PAD_HIDES_EOS)
            found.append(finding)
    return sorted(found, key=lambda finding: finding.severity.rank)


def _pad_hides_eos(
    broken: Sequence[Broken],
    by_side: Mapping[Side, tuple[Broken, ...]],
    checked: Mapping[Side, Checked],
) -> bool:
    """Tell whether eos is masked out on the one side that pads with it, and only there."""
    if any(b.defect is not Defect.EOS_MISSING or b.tensor != "response_mask" for b in broken):
        return False
    ends = {b.engine.response[-1] for b in broken if b.engine is not None}
    return all(bool(rows) == (ends <= checked[side].padding) for side, rows in by_side.items())


def _finding(
    defect: Defect, by_side: Mapping[Side, tuple[Broken, ...]], checked: Mapping[Side, Checked]
) -> Finding:
    sides = [side for side, broken in by_side.items() if broken]
    both = len(sides) > 1
    words, where = WORDING[defect], _IN[Side.BOTH if both else sides[0]]
    counts = {
        side: len({(b.step, b.source, b.row) for b in broken}) for side, broken in by_side.items()
    }
    first = _first_step([broken.step for side in sides for broken in by_side[side]])
    rows = ", ".join(
        f"{counts[side]}/{checked[side].num_rows + checked[side].num_alone}" for side in sides
    )
    signature = _LENGTHS if words.lengths else ()
    return Finding(
        id=f"tokens.{defect.value}",
        rung=Rung.TOKENS,
        severity=Severity.INFO if both else Severity.ERROR,
        title=Text(
            f"{words.title.en}, {where.en}: {rows} rows{first.en}",
            f"{words.title.zh}（{where.zh}）：{rows} 行{first.zh}",
        ),
        reference=counts[Side.REFERENCE],
        candidate=counts[Side.CANDIDATE],
        evidence=tuple(
            item for side in sides for b in by_side[side][:_QUOTED] for item in _evidence(b, side)
        ),
        why=words.why,
        fix=words.fix,
        mechanism=None if both else Mechanism(Rung.TOKENS, Strength.SEMANTIC, signature),
    )


def _first_step(steps: Sequence[int | None]) -> Text:
    known = [step for step in steps if step is not None]
    if not known:
        return Text("", "")
    return Text(f", first at step {min(known)}", f"，最早在第 {min(known)} 步")


def _evidence(broken: Broken, side: Side) -> tuple[Evidence, ...]:
    place = f"{broken.tensor}[{broken.row}, {broken.column}]"
    around = f"expected {list(broken.expected)}, found {list(broken.found)}"
    trainer = Evidence(broken.source, side, key=place, text=around[:200])
    if broken.engine is None:
        return (trainer,)
    return (trainer, _engine_evidence(broken.engine, side, "response_ids"))


def _engine_evidence(row: EngineRow, side: Side, key: str) -> Evidence:
    source, line = row.place
    if key == "prompt_ids":
        return Evidence(source, side, line, key, str(list(row.prompt))[:200])
    text = f"finish_reason {row.finish_reason}: {list(row.response[-12:])}"
    return Evidence(source, side, line, key, text[:200])


def _prompts(rows: Mapping[Side, TokenRows]) -> list[Finding]:
    """Compare the ids of prompts of equal text."""
    reference, candidate = (_by_text(rows[s]) for s in (Side.REFERENCE, Side.CANDIDATE))
    common = [text for text in reference if text and text in candidate]
    other = [text for text in common if reference[text].prompt != candidate[text].prompt]
    if not other:
        return []
    pairs = [(reference[text], candidate[text]) for text in other[:_QUOTED]]
    edit = _edit_text([(reference[text].prompt, candidate[text].prompt) for text in other])
    return [
        Finding(
            id="tokens.prompt_differs",
            rung=Rung.TOKENS,
            severity=Severity.ERROR,
            title=Text(
                f"the same prompt has other token ids: {len(other)} of {len(common)} prompts"
                + edit.en,
                f"相同的 prompt 的 token id 不同：{len(common)} 条 prompt 中有 {len(other)} 条"
                + edit.zh,
            ),
            reference=len(pairs[0][0].prompt),
            candidate=len(pairs[0][1].prompt),
            evidence=tuple(
                _engine_evidence(row, side, "prompt_ids")
                for pair in pairs
                for row, side in zip(pair, (Side.REFERENCE, Side.CANDIDATE), strict=True)
            ),
            why=Text(
                "The two models are asked in different tokens. Where the tokenizer and data rungs "
                "agree, the ids are changed after templating.",
                "两侧模型看到的 token 不同。"
                "若 tokenizer 与 data 环节一致，则 id 是在套用模板之后被改变的。",
            ),
            fix=Text(
                "Encode the quoted prompt with both tokenizers and compare vocabulary, merges, bos "
                "and chat template.",
                "请用两侧的分词器编码所引用的 prompt，对照词表、merges、bos 与 chat template。",
            ),
            mechanism=Mechanism(Rung.TOKENS, Strength.SEMANTIC, _PROMPT_LENGTHS),
        )
    ]


def _edit_text(pairs: Sequence[tuple[Ids, Ids]]) -> Text:
    """Say what is done to every prompt, where one thing is."""
    shared = set.intersection(*({span.edit for span in spans(*pair)} for pair in pairs))
    if not shared:
        return Text("", "")
    lost, added = min(shared)
    if lost and added:
        return Text(
            f", each with {list(added)} for {list(lost)}", f"，均以 {list(added)} 代替 {list(lost)}"
        )
    side, zh_side = ("candidate", "被测") if lost else ("reference", "参考")
    ids = list(lost or added)
    return Text(f"; the {side} lacks {ids} in each", f"；{zh_side}的每条都缺少 {ids}")


def _masks(rows: Mapping[Side, TokenRows]) -> list[Finding]:
    """Compare the engines' masks of responses that both runs have, token by token."""
    reference, candidate = (_by_ids(rows[s]) for s in (Side.REFERENCE, Side.CANDIDATE))
    common = [ids for ids in reference if ids in candidate]
    other = [ids for ids in common if reference[ids].mask != candidate[ids].mask]
    if not other:
        return []
    words = DIFFERENCES[Difference.MASK]
    pairs = [(reference[ids], candidate[ids]) for ids in other[:_QUOTED]]
    (first, mate), sides = pairs[0], (Side.REFERENCE, Side.CANDIDATE)
    at = next(i for i, (a, b) in enumerate(zip(first.mask, mate.mask, strict=True)) if a != b)
    counts = [sum(row.mask) for row in (first, mate)]
    return [
        Finding(
            id=f"tokens.{Difference.MASK.value}",
            rung=Rung.TOKENS,
            severity=Severity.ERROR,
            title=Text(
                f"the same responses are masked otherwise: {len(other)} of {len(common)}; of the "
                f"first {counts[0]} tokens count in the reference and {counts[1]} in the "
                f"candidate, beginning to differ at token {at}",
                f"相同回复的 mask 不同：{len(common)} 条中有 {len(other)} 条；"
                f"第一条在参考中计 {counts[0]} 个 token，在被测中计 {counts[1]} 个，"
                f"从第 {at} 个 token 开始不同",
            ),
            reference=counts[0],
            candidate=counts[1],
            evidence=tuple(
                Evidence(*row.place[:1], side, row.place[1], "response_mask", str(list(row.mask)))
                for pair in pairs
                for row, side in zip(pair, sides, strict=True)
            ),
            why=words.why,
            fix=words.fix,
            mechanism=Mechanism(Rung.TOKENS, Strength.SEMANTIC, ("response_length/*",)),
        )
    ]


def _by_ids(rows: TokenRows) -> dict[tuple[Ids, Ids], EngineRow]:
    every = (row for step in rows.engine.values() for row in step)
    return {(row.prompt, row.response): row for row in every if row.response}


def _by_text(rows: TokenRows) -> dict[str, EngineRow]:
    texts: dict[str, EngineRow] = {}
    for step in rows.engine.values():
        for row in step:
            texts.setdefault(row.prompt_text, row)
    return texts


def _summary(
    checked: Mapping[Side, Checked], found: Sequence[Finding], unread: Sequence[str]
) -> Text:
    reference, candidate = checked[Side.REFERENCE], checked[Side.CANDIDATE]
    told = []
    if reference.num_rows or candidate.num_rows:
        told.append(
            Text(
                f"Rows whose trainer input was held against the engine's tokens: "
                f"{_part(reference)} in the reference, {_part(candidate)} in the candidate.",
                f"与推理引擎输出核对过的训练输入：参考 {_part(reference)} 行，"
                f"被测 {_part(candidate)} 行。",
            )
        )
    if reference.num_alone or candidate.num_alone:
        told.append(
            Text(
                f"Rows checked by themselves: {reference.num_alone} in the reference, "
                f"{candidate.num_alone} in the candidate.",
                f"单独核对的行：参考 {reference.num_alone} 行，被测 {candidate.num_alone} 行。",
            )
        )
    scale = Text(" ".join(t.en for t in told), "".join(t.zh for t in told))
    if unread:
        scale = Text(
            f"{scale.en} Not read: {'; '.join(unread[:_QUOTED])}.",
            f"{scale.zh}未读取：{'; '.join(unread[:_QUOTED])}。",
        )
    weighty = [finding for finding in found if finding.severity is not Severity.INFO]
    if not weighty:
        return scale
    title = weighty[0].title
    return Text(f"{title.en[:1].upper()}{title.en[1:]}. {scale.en}", f"{title.zh}。{scale.zh}")


def _part(checked: Checked) -> str:
    return f"{checked.num_matched}/{checked.num_rows}"


def _not_compared(missing: tuple[Any, ...], unread: Sequence[str]) -> RungResult:
    why = f" ({'; '.join(unread[:_QUOTED])})" if unread else ""
    return RungResult(
        name=Rung.TOKENS,
        status=RungStatus.MISSING,
        summary=Text(
            f"Not compared: no trainer inputs that can be read on either side{why}.",
            f"未比较：两侧都没有可读的训练输入{why}。",
        ),
        missing=missing,
    )
