"""What the rollout rung says of one run by itself: broken responses, incomplete groups."""

from __future__ import annotations

from align.core.config_value import ConfigValue
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength, Symptom
from align.core.rung import Rung
from align.core.text import Text
from align.rollout.findings import DEGENERATE_FIX, DEGENERATE_WHY
from align.rollout.groups import Incomplete
from align.rollout.sick import SICK_SHARE, Sick
from dumps.store.rollout_pair import RolloutPair, SideRows

_QUOTE = 200
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}


def sick_finding(pair: RolloutPair, sick: Sick) -> Finding:
    """Say that one run alone gives responses that no working engine gives."""
    rows, side = _rows(pair, sick.side), sick.side
    share = sick.num_sick / sick.num_rows
    name, limit = sick.statistic.name, f"{SICK_SHARE.value:.0%}"
    (text,) = rows.index.texts(rows.row[[sick.position]])
    return Finding(
        id=f"rollout.{sick.statistic.id}",
        rung=Rung.ROLLOUT,
        severity=Severity.ERROR,
        title=Text(
            f"{name.en}: {share:.0%} at step {sick.step} of the {side.value}, below {limit} at "
            "every step of the other run",
            f"{name.zh}：{_ZH[side]}第 {sick.step} 步为 {share:.0%}，另一侧每步都低于 {limit}",
        ),
        reference=share if side is Side.REFERENCE else None,
        candidate=share if side is Side.CANDIDATE else None,
        evidence=(
            Evidence(
                text.source,
                side,
                line=text.line,
                text=text.response.replace("\n", "\\n")[:_QUOTE] or None,
                values=(share,),
            ),
        ),
        why=DEGENERATE_WHY,
        fix=DEGENERATE_FIX,
        symptom=Symptom(
            metric=sick.statistic.metric,
            rung=sick.statistic.rung,
            step=sick.step,
            first_recorded_step=int(rows.step[rows.step >= 0].min(initial=sick.step)),
            noise_sized=False,
        ),
    )


def incomplete_finding(pair: RolloutPair, odd: Incomplete) -> Finding:
    """Say that one run alone has prompts with missing or surplus responses."""
    side, rows = odd.side, _rows(pair, odd.side)
    counts = odd.num_prompts, odd.num_groups
    return Finding(
        id="rollout.incomplete_groups",
        rung=Rung.ROLLOUT,
        severity=Severity.WARNING,
        title=Text(
            f"{counts[0]} of {counts[1]} prompts of the {side.value} do not have {odd.usual} "
            f"responses, first {odd.size} at step {odd.step}; every prompt of the other run has "
            "all",
            f"{_ZH[side]}有 {counts[0]}/{counts[1]} 个 prompt 的回复数不是 {odd.usual}，"
            f"最早在第 {odd.step} 步（{odd.size} 条）；另一侧每个 prompt 的回复都齐全",
        ),
        reference=odd.size if side is Side.REFERENCE else None,
        candidate=odd.size if side is Side.CANDIDATE else None,
        evidence=(_place(rows, side, odd.position, odd.size),),
        why=Text(
            "GRPO compares the responses to one prompt; with some missing, or grouped by place, "
            "the baseline of that prompt is another one.",
            "GRPO 在同一 prompt 的回复之间比较；若有缺失或按位置分组，该 prompt 的基线就会改变。",
        ),
        fix=Text(
            "Look for responses dropped by a timeout or a filter, and for rows lost or doubled "
            "when the dump was gathered from several ranks.",
            "检查是否有回复因超时或过滤被丢弃，以及从多个 rank 汇总时是否丢失或重复了行。",
        ),
        mechanism=Mechanism(Rung.ROLLOUT, Strength.NUMERIC),
    )


def configured_otherwise(
    side: Side, rows: SideRows, stated: ConfigValue, number: int, observed: int
) -> Finding:
    """Say that a run's dump has another group size than its own configuration."""
    stood = stated.provenance
    return Finding(
        id="rollout.group_size_not_configured",
        rung=Rung.ROLLOUT,
        severity=Severity.WARNING,
        title=Text(
            f"the {side.value} is configured for {number} responses per prompt, and its dump "
            f"has {observed}",
            f"{_ZH[side]}的配置为每个 prompt {number} 条回复，而记录中有 {observed} 条",
        ),
        reference=observed if side is Side.REFERENCE else None,
        candidate=observed if side is Side.CANDIDATE else None,
        evidence=(
            Evidence(stood.source, side, stood.line, stated.key, stood.text, (number,)),
            _place(rows, side, 0, observed),
        ),
        why=Text(
            "Either the dump is a part of the rollout, and what is compared here is a part, or "
            "the setting does not reach the engine.",
            "要么记录只是 rollout 的一部分（此处比较的也只是这一部分），要么该设置未传到推理引擎。",
        ),
        fix=Text(
            "Dump every response of a step, or find where the number of samples is overridden.",
            "请记录一个 step 的全部回复，或查找采样数被覆盖的位置。",
        ),
        mechanism=Mechanism(Rung.ROLLOUT, Strength.NONE),
    )


def _rows(pair: RolloutPair, side: Side) -> SideRows:
    return pair.reference if side is Side.REFERENCE else pair.candidate


def _place(rows: SideRows, side: Side, position: int, value: int) -> Evidence:
    index, row = rows.index, rows.row[position]
    source = index.sources[index.source[row]]
    return Evidence(source, side, line=int(index.line[row]), values=(value,))
