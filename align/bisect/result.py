"""What a bisection found, in words and as a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from align.bisect.command import values_of
from align.bisect.drive import Driven
from align.bisect.knob import Change, Knob, Setting, setting_of, without
from align.bisect.plan import describe
from align.bisect.search import Ending, Outcome
from align.config.diff import scalar
from align.core.config_value import ConfigLeaf
from align.core.figure import Cell, Column, Table
from align.core.text import Text

_SHOWN_SUSPECTS = 12


def confidence(driven: Driven) -> float | None:
    """Return a lower bound of the probability that every doubted setting was judged rightly.

    None where no setting was in doubt. Source: the union bound.
    """
    stated = [v.confidence for v in driven.votes.values() if v.confidence is not None]
    return max(0.0, 1 - sum(1 - c for c in stated)) if stated else None


def sentence(driven: Driven) -> Text:
    """Say which knobs it is, or why that is not known."""
    search = driven.search
    if search.sets:
        return _found(driven)
    if search.ending is Ending.REFERENCE_IS_BAD:
        return Text(
            "Nothing to find: with every knob at the reference's value the verdict is bad already. "
            "The cause is not among these knobs, or the command does not use them.",
            "无从查找：所有开关都取参考值时判定已为“坏”。原因不在这些开关中，或命令没有使用它们。",
        )
    if search.ending is Ending.CANDIDATE_IS_GOOD:
        return Text(
            "Nothing to find: with every knob at the candidate's value the verdict is good. The "
            "cause is not among these knobs, or the verdict's threshold is too wide.",
            "无从查找：所有开关都取被测值时判定仍为“好”。原因不在这些开关中，或判定的阈值过宽。",
        )
    if search.ending is Ending.UNRESOLVED:
        return Text(
            "Unknown: a trial with every knob on one side could not be judged. Read output.log of "
            "that trial, then go on with --resume.",
            "未知：所有开关取同一侧数值的试验无法判定。"
            "请查看该试验的 output.log，再用 --resume 继续。",
        )
    return _stopped(driven)


def fix(driven: Driven) -> Text | None:
    """Say what to set, None where nothing was found."""
    changes = [change for found in driven.search.sets for change in found]
    if not changes:
        return None
    knobs = driven.plan.knobs
    parts = [f"{knobs[c.knob].name} = {shown(knobs[c.knob].values[c.level - 1])}" for c in changes]
    settings = ", ".join(parts)
    if driven.search.complete:
        return Text(
            f"Set {settings} in the candidate: tried, and the verdict is good.",
            f"在被测中设置 {settings}：已试验，判定为“好”。",
        )
    return Text(
        f"Set {settings} in the candidate; whether that is enough was not shown.",
        f"在被测中设置 {settings}；是否足够尚未得到证实。",
    )


def document(driven: Driven) -> dict[str, Any]:
    """Return the result as JSON-ready values."""
    said, remedy = sentence(driven), fix(driven)
    search, plan = driven.search, driven.plan
    return {
        "schema_version": 1,
        "ending": search.ending.value,
        "complete": search.complete,
        "sentence": said.en,
        "fix": None if remedy is None else remedy.en,
        "zh": {"sentence": said.zh, "fix": None if remedy is None else remedy.zh},
        "confidence": confidence(driven),
        "verdict": describe(plan.test),
        "sets": [_set_document(driven, i) for i in range(len(search.sets))],
        "suspects": sorted({plan.knobs[c.knob].name for c in driven.suspects}),
        "num_knobs": len(plan.knobs),
        "num_trials": len(driven.trials),
        "trial_hours": round(sum(t.elapsed_s for t in driven.trials) / 3600, 4),
        "left_out": [{"name": item.name, "why": item.why} for item in plan.left_out],
        "trials": [
            {
                "name": trial.name,
                "at_candidate": at_candidate(plan.knobs, trial.setting),
                "values": values_of(plan.knobs, trial.setting),
                "repeat": trial.repeat,
                "outcome": trial.reading.outcome.value,
                "distance": trial.reading.distance,
                "said": trial.said,
                "elapsed_s": round(trial.elapsed_s, 3),
            }
            for trial in driven.trials
        ],
    }


def trials_table(driven: Driven) -> Table:
    """List what was tried, in order."""
    rows: list[tuple[Cell, ...]] = [
        (
            i + 1,
            sum(map(bool, trial.setting)),
            trial.repeat,
            trial.reading.outcome.value,
            trial.name,
            trial.said,
        )
        for i, trial in enumerate(driven.trials)
    ]
    return Table(
        "bisect.trials",
        Text("Trials", "试验"),
        (
            Column("number", Text("no.", "序号"), numeric=True),
            Column("changed", Text("knobs changed", "已改开关数"), numeric=True),
            Column("repeat", Text("repeat", "第几次"), numeric=True),
            Column("outcome", Text("verdict", "判定")),
            Column("name", Text("folder", "目录")),
            Column("said", Text("read from", "依据")),
        ),
        tuple(rows),
    )


def at_candidate(knobs: Sequence[Knob], setting: Setting) -> list[str]:
    """Return the names of the knobs that are not at the reference's value."""
    return [knob.name for knob, level in zip(knobs, setting, strict=True) if level]


def shown(value: ConfigLeaf) -> str:
    """Return a value as a reader sees it; a commit by its first digits."""
    text = "unset" if value is None else str(scalar(value))
    return text[:12] if len(text) == 40 and text.isalnum() else text


def _found(driven: Driven) -> Text:
    sets = driven.search.sets
    parts = [_set_text(driven, found) for found in sets]
    text = Text(" ".join(p.en for p in parts), "".join(p.zh for p in parts))
    if driven.search.complete:
        return text
    return Text(
        f"{text.en} There may be more: the candidate without this is bad still, or could not be "
        "judged within the budget.",
        f"{text.zh}可能还有其他原因：去掉上述差异后被测仍为“坏”，或在预算内无法判定。",
    )


def _set_text(driven: Driven, found: tuple[Change, ...]) -> Text:
    knobs, search = driven.plan.knobs, driven.search
    parts = [_change_text(knobs[change.knob], change.level) for change in found]
    en, zh = " and ".join(p.en for p in parts), "，并且 ".join(p.zh for p in parts)
    if len(found) == 1:
        return Text(f"{en}: this alone turns the verdict bad.", f"{zh}：仅此一项就使判定变为“坏”。")
    fewer = [search.outcome(tuple(c for c in found if c != gone)) for gone in found]
    if any(outcome is not Outcome.GOOD for outcome in fewer):
        return Text(
            f"{en}: these {len(found)} together turn the verdict bad; whether fewer of them do "
            "could not be judged.",
            f"{zh}：这 {len(found)} 项同时出现使判定变为“坏”；更少的项是否足够无法判定。",
        )
    return Text(
        f"{en}: these {len(found)} together turn the verdict bad; fewer of them do not.",
        f"{zh}：这 {len(found)} 项同时出现才使判定变为“坏”，去掉任何一项都不会。",
    )


def _change_text(knob: Knob, level: int) -> Text:
    before, after = shown(knob.values[level - 1]), shown(knob.values[level])
    if knob.last > 1:
        return Text(
            f"{knob.name} {after} (good with {before}, the one before it)",
            f"{knob.name} {after}（前一个 {before} 为“好”）",
        )
    return Text(
        f"{knob.name} = {after} (reference: {before})", f"{knob.name} = {after}（参考：{before}）"
    )


def _stopped(driven: Driven) -> Text:
    knobs = driven.plan.knobs
    names = list(dict.fromkeys(knobs[c.knob].name for c in driven.suspects)) or [
        knob.name for knob in knobs
    ]
    more = "" if len(names) <= _SHOWN_SUSPECTS else f", … ({len(names)})"
    listed = ", ".join(names[:_SHOWN_SUSPECTS]) + more
    kept = ", ".join(dict.fromkeys(knobs[c.knob].name for c in driven.kept))
    also = Text("", "")
    if kept:
        also = Text(f" It acts together with {kept}.", f"它与 {kept} 共同起作用。")
    return Text(
        f"Unknown: the budget is spent. One of these is it: {listed}.{also.en} Go on with --resume "
        "and a larger budget.",
        f"未知：预算已用完。原因在以下各项之中：{listed}。{also.zh}"
        "请用 --resume 与更大的预算继续。",
    )


def _set_document(driven: Driven, which: int) -> dict[str, Any]:
    found, knobs = driven.search.sets[which], driven.plan.knobs
    gone = [c for earlier in driven.search.sets[: which + 1] for c in earlier]
    left = driven.search.changes
    for change in gone:
        left = without(left, (change,))
    return {
        "knobs": [
            {
                "name": knobs[c.knob].name,
                "kind": knobs[c.knob].kind.value,
                "reference": knobs[c.knob].values[0],
                "candidate": knobs[c.knob].values[-1],
                "last_good": knobs[c.knob].values[c.level - 1],
                "first_bad": knobs[c.knob].values[c.level],
            }
            for c in found
        ],
        "bad_alone": _names(driven, found),
        "candidate_without_it": _names(driven, left),
    }


def _names(driven: Driven, changes: Iterable[Change]) -> list[str]:
    """Return the trials of one setting: the evidence."""
    setting = setting_of(tuple(changes), len(driven.plan.knobs))
    return [trial.name for trial in driven.trials if trial.setting == setting]
