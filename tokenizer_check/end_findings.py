"""What the tokenizer rung says about the ends of responses, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from align.core.finding import Evidence, Finding, Mechanism, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text
from tokenizer_check.end_sets import Ids
from tokenizer_check.recorded_responses import TrainedEnds

if TYPE_CHECKING:
    from tokenizer_check.end_comparison import Ending

_ROLLOUT = Mechanism(Rung.ROLLOUT, Strength.SEMANTIC)
_TOKENS = Mechanism(Rung.TOKENS, Strength.SEMANTIC)
_FIX = Text(
    "Let eos_token of the tokenizer, eos_token_id of generation_config.json and the end of a turn "
    "in the chat template agree on both sides: take all files from one model's folder.",
    "使 tokenizer 的 eos_token、generation_config.json 的 eos_token_id 与 chat template 的轮次结尾"
    "在两侧一致：所有文件取自同一个模型目录。",
)


def runs_on(side: Ending) -> Text:
    """Say that an engine does not stop where the template ends a turn."""
    end = side.turn_end.shown() if side.turn_end else ""
    return Text(
        f"The {side.name.en}'s chat template ends a turn with {end}, and its engine stops only at "
        f"{_listed(side.stops)}: responses that end the turn run on to the length limit.",
        f"{side.name.zh}的 chat template 以 {end} 结束一轮，而其推理引擎只在 {_listed(side.stops)} "
        "停止：已结束该轮的回复会一直生成到长度上限。",
    )


def would_strip(side: Ending, cut: Ids, sides: tuple[Ending, Ending]) -> Text:
    """Say what MindSpeed-RL makes of a run's tokens, and how many recorded rows it concerns."""
    listed, counts = _listed(cut), _counts(cut, sides)
    return Text(
        f"In MindSpeed-RL the {side.name.en}'s engine also stops at {listed}, which is its padding "
        f"and not its tokenizer's eos ({side.stated.eos}): the eos would be stripped as padding"
        f"{counts.en}.",
        f"在 MindSpeed-RL 中，{side.name.zh}的推理引擎也会在 {listed} 停止，"
        f"它是填充符而不是 tokenizer 的 eos（{side.stated.eos}）："
        f"eos 会被当作填充截去{counts.zh}。",
    )


def lost_in_training(side: Ending, trained: TrainedEnds) -> Text:
    """Count the trainer's rows without an end token in the loss."""
    return Text(
        f"In the {side.name.en}'s trainer inputs {trained.num_lost} of {trained.num_rows} rows "
        f"that ended before the length limit lose their eos in the loss ({trained.source}).",
        f"{side.name.zh}的训练输入中，未达长度上限的 {trained.num_rows} 行里有 "
        f"{trained.num_lost} 行的 eos 不计入损失（{trained.source}）。",
    )


def turn_end(reference: Ending, candidate: Ending) -> Finding:
    """Say that only one side's engine stops where the template ends a turn."""
    ours, theirs = (s.turn_end.shown() if s.turn_end else None for s in (reference, candidate))
    wrong = reference if reference.runs_on else candidate
    return Finding(
        id="tokenizer.turn_end",
        rung=Rung.TOKENIZER,
        severity=Severity.ERROR,
        title=Text(
            f"the chat template ends a turn with {ours} in the reference, {theirs} in the "
            f"candidate; the {wrong.name.en}'s engine does not stop there",
            f"chat template 的轮次结尾：参考为 {ours}，被测为 {theirs}；"
            f"{wrong.name.zh}的推理引擎不在该处停止",
        ),
        reference=ours,
        candidate=theirs,
        evidence=_evidence(reference, candidate),
        why=runs_on(wrong),
        fix=_FIX,
        mechanism=_ROLLOUT,
    )


def stop_set(reference: Ending, candidate: Ending) -> Finding:
    """Say that the engines stop at other ids, though no pair of files differs."""
    ours, theirs = _listed(reference.stops), _listed(candidate.stops)
    return Finding(
        id="tokenizer.stop_set",
        rung=Rung.TOKENIZER,
        severity=Severity.WARNING,
        title=Text(
            f"the rollout engine would stop at {ours} in the reference, {theirs} in the candidate",
            f"推理引擎的停止集合：参考为 {ours}，被测为 {theirs}",
        ),
        reference=ours,
        candidate=theirs,
        evidence=_evidence(reference, candidate),
        why=Text(
            "vLLM stops at the tokenizer's eos and at every eos of generation_config.json, or of "
            "config.json without one. A response that ends with an id of one side alone runs on to "
            "the length limit on the other.",
            "vLLM 在 tokenizer 的 eos 以及 generation_config.json（缺少时为 config.json）"
            "列出的所有 eos 处停止。以仅一侧认可的 id 结尾的回复，在另一侧会生成到长度上限。",
        ),
        fix=_FIX,
        mechanism=_ROLLOUT,
    )


def stripped_eos(reference: Ending, candidate: Ending) -> Finding:
    """Say that one run's framework cuts end tokens off as padding."""
    sides = (reference, candidate)
    wrong = next(side for side in sides if side.strips)
    cut = wrong.strips or frozenset[int]()
    seen = sum(side.recorded.num_ending_with(cut) for side in sides)
    ours, theirs = (_listed(side.strips) for side in sides)
    return Finding(
        id="tokenizer.stripped_eos",
        rung=Rung.TOKENIZER,
        severity=Severity.ERROR if seen else Severity.WARNING,
        title=Text(
            f"end tokens that the trainer cuts off as padding: {ours} in the reference, {theirs} "
            "in the candidate",
            f"被训练侧当作填充截去的结束符：参考为 {ours}，被测为 {theirs}",
        ),
        reference=ours,
        candidate=theirs,
        evidence=_evidence(reference, candidate),
        why=would_strip(wrong, cut, sides),
        fix=_FIX,
        mechanism=_TOKENS,
    )


def _counts(cut: Ids, sides: tuple[Ending, Ending]) -> Text:
    """Say how many recorded responses end with these ids; nothing where none was recorded."""
    found = [(side, side.recorded.num_ending_with(cut)) for side in sides]
    known = [(side, count) for side, count in found if side.recorded.num_rows]
    if not known:
        return Text("", "")
    said = [
        Text(
            f"{count} of {side.recorded.num_rows} recorded responses of the {side.name.en}",
            f"{side.name.zh}记录的 {side.recorded.num_rows} 条回复中的 {count} 条",
        )
        for side, count in known
    ]
    return Text(
        f", which loses the eos of {' and of '.join(s.en for s in said)}",
        f"，受影响的有{'、'.join(s.zh for s in said)}",
    )


def _evidence(reference: Ending, candidate: Ending) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            source=str(side.turn_end.template.path),
            side=side.side,
            line=side.turn_end.template.line,
            key=side.turn_end.template.key,
            values=(side.turn_end.shown(), _listed(side.stops)),
        )
        if side.turn_end
        else Evidence("stop set of vLLM", side.side, values=(_listed(side.stops),))
        for side in (reference, candidate)
    )


def _listed(ids: Ids | None) -> str:
    return "none" if not ids else ", ".join(map(str, sorted(ids)))
