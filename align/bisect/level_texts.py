"""Each level of a drift in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from align.bisect.drift_rows import FirstRows
from align.bisect.drift_tasks import TaskShift
from align.bisect.level import Level, LevelStatus
from align.core.finding import Evidence, Finding, Severity, Side
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text, joined

Rungs = Mapping[Rung, RungResult]

_FOUND, _OPEN, _MISSING = LevelStatus.FOUND, LevelStatus.OPEN, LevelStatus.MISSING
_SHOWN = 4
_TASKS = Text(
    "Write the column task or data_source into the rollout dump, beside the score.",
    "在 rollout 数据中除得分外加入 task 或 data_source 列。",
)
_REPLAY = Text(
    "Run the candidate on the reference's rollouts: `align replay`. Then rows, tokens and layers "
    "can be compared one by one.",
    "用 `align replay` 让被测使用参考的 rollout，之后即可逐行、逐 token、逐层比较。",
)
_LAYERS = (Rung.FORWARD, Rung.WEIGHT_SYNC, Rung.BACKWARD)


def step_level(symptoms: Sequence[Finding], rows: FirstRows | None) -> Level:
    """Say from which step on something drifts."""
    said, ids = [], []
    if symptoms and symptoms[0].symptom is not None:
        first = symptoms[0].symptom
        until = f"–{first.begun_by}" if first.step_uncertainty else ""
        said.append(
            Text(
                f"metrics part from step {first.step}{until} on",
                f"指标从第 {first.step}{until} 步起不同",
            )
        )
        ids.append(symptoms[0].id)
    if rows is not None and rows.step is not None and not rows.sampled_apart:
        said.append(
            Text(f"rows differ from step {rows.step} on", f"数据行从第 {rows.step} 步起不同")
        )
    if not said:
        return Level("step", _OPEN, Text("no metric parts beyond noise", "没有指标的差异超出噪声"))
    return Level("step", _FOUND, joined(said), tuple(ids))


def metric_level(symptoms: Sequence[Finding]) -> Level:
    """Say which metric moved first, and which can have moved as early."""
    if not symptoms:
        return Level("metric", _OPEN, Text("none parts beyond noise", "没有超出噪声的差异"))
    first = symptoms[0].symptom
    assert first is not None
    early = [f for f in symptoms if f.symptom and f.symptom.step <= first.begun_by]
    names = list(dict.fromkeys(f.symptom.metric for f in early if f.symptom))
    more = ", ".join(names[1 : 1 + _SHOWN]) + (", …" if len(names) > 1 + _SHOWN else "")
    beside = Text("", "")
    if more:
        beside = Text(
            f"; as early, and later in the chain: {more}", f"；同样早但在链路更后的：{more}"
        )
    place = Text(
        f"{first.metric} (rung {first.rung.value}) moved first{beside.en}",
        f"{first.metric}（{first.rung.value} 环节）最先变化{beside.zh}",
    )
    evidence = tuple(e for e in symptoms[0].evidence if e.values)[:2]
    shown = tuple(
        Evidence(e.source, e.side, e.line, text=f"{first.metric} {e.values[0]}") for e in evidence
    )
    return Level("metric", _FOUND, place, tuple(f.id for f in early), shown)


def task_level(shifts: tuple[TaskShift, ...] | None) -> Level:
    """Say which task carries the difference of the score."""
    if shifts is None:
        why = Text("no task and score in both rollout dumps", "两侧 rollout 数据缺少任务与得分")
        return Level("task", _MISSING, why, missing=_TASKS)
    real = [shift for shift in shifts if shift.beyond_noise]
    if not real:
        return Level(
            "task",
            _OPEN,
            Text(
                f"no task's score differs beyond its sampling error ({len(shifts)} tasks)",
                f"没有任务的得分差异超出抽样误差（共 {len(shifts)} 个任务）",
            ),
        )
    parts = "; ".join(
        f"{s.task} {s.difference:+.3g} ± {s.error:.2g} ({s.share:.0%})" for s in real[:_SHOWN]
    )
    return Level(
        "task",
        _FOUND if len(real) < len(shifts) else _OPEN,
        Text(
            f"{len(real)} of {len(shifts)} tasks differ in score beyond sampling error: {parts} of "
            "the difference of the mean",
            f"{len(shifts)} 个任务中有 {len(real)} 个得分差异超出抽样误差：{parts}，"
            "括号内为占总均值差异的比例",
        ),
    )


def row_level(rows: FirstRows | None, rungs: Rungs) -> Level:
    """Say which rows differ first."""
    defect = _defect(rungs)
    if defect is not None and not (rows and rows.num_scores):
        return Level("row", _FOUND, defect.title, (defect.id,), defect.evidence[:2])
    if rows is None:
        return _not_recorded("row", Rung.ROLLOUT)
    if rows.step is None:
        return Level("row", _OPEN, Text("every recorded row is the same", "所有记录的行都相同"))
    quotes = tuple(
        Evidence(text.source, side, text.line, text=_short(text.prompt, text.response))
        for both in rows.quoted
        for side, text in zip((Side.REFERENCE, Side.CANDIDATE), both, strict=True)
    )
    if rows.num_scores:
        place = Text(
            f"step {rows.step}: {rows.num_scores} of {rows.num_rows} rows have the same response "
            "and another score",
            f"第 {rows.step} 步：{rows.num_rows} 行中有 {rows.num_scores} 行回复相同而得分不同",
        )
        ids = (*_ids(rungs, Rung.DATA), *_ids(rungs, Rung.REWARD))
        return Level("row", _FOUND, place, ids, quotes)
    if rows.sampled_apart:
        place = Text(
            f"{rows.num_responses} of {rows.num_rows} responses differ in the first common step "
            "already: each run samples its own, so no row tells more than another",
            f"第一个共同的步中 {rows.num_rows} 条回复已有 {rows.num_responses} 条不同："
            "两侧各自采样，单独一行不能说明问题",
        )
        found = _ids(rungs, Rung.ROLLOUT)
        return Level("row", _MISSING, place, found, missing=_REPLAY)
    before = Text("", "") if rows.is_first else Text(", all before are the same", "，此前全部相同")
    place = Text(
        f"step {rows.step}: {rows.num_responses} of {rows.num_rows} responses differ{before.en}",
        f"第 {rows.step} 步：{rows.num_rows} 条回复中有 {rows.num_responses} 条不同{before.zh}",
    )
    return Level("row", _FOUND, place, _ids(rungs, Rung.ROLLOUT), quotes)


def token_level(rows: FirstRows | None, rungs: Rungs) -> Level:
    """Say which token differs first: in what is trained on, else in the first differing row."""
    of_rung = _first(rungs, Rung.TOKENS)
    if of_rung is not None:
        return Level("token", _FOUND, of_rung.title, (of_rung.id,), of_rung.evidence[:2])
    if rows is None:
        return _not_recorded("token", Rung.TOKENS)
    if rows.num_scores:
        why = Text("the first differing rows have the same response", "最早不同的行回复相同")
        return Level("token", _OPEN, why)
    if rows.sampled_apart:
        why = Text("responses are sampled apart", "两侧各自采样")
        return Level("token", _MISSING, why, missing=_REPLAY)
    if rows.token is None:
        why = Text("no response differs in its tokens", "没有回复在 token 上不同")
        return Level("token", _OPEN, why)
    token = rows.token
    unit = Text("token", "个 token") if token.in_tokens else Text("character", "个字符")
    ours, theirs = (repr(x) if x is not None else "-" for x in (token.reference, token.candidate))
    place = Text(
        f"{unit.en} {token.position} (0-based) of the first differing response: {ours} in the "
        f"reference, {theirs} in the candidate",
        f"最早不同的回复的第 {token.position} {unit.zh}（从 0 计）：参考为 {ours}，被测为 {theirs}",
    )
    return Level("token", _FOUND, place)


def layer_level(rungs: Rungs) -> Level:
    """Say which module differs first."""
    for name in _LAYERS:
        finding = _first(rungs, name)
        if finding is not None:
            return Level("layer", _FOUND, finding.title, (finding.id,), finding.evidence[:2])
    compared = [rungs[n] for n in _LAYERS if n in rungs and rungs[n].status is RungStatus.ALIGNED]
    if compared:
        return Level("layer", _OPEN, joined([result.summary for result in compared]))
    return _not_recorded("layer", Rung.FORWARD)


def _not_recorded(level: str, rung: Rung) -> Level:
    missing = missing_artifact(rung)
    return Level(level, _MISSING, missing.artifact, missing=missing.how_to_record)


def _first(rungs: Rungs, name: Rung) -> Finding | None:
    findings = rungs[name].findings if name in rungs else ()
    return next((f for f in findings if f.severity is not Severity.INFO), None)


def _defect(rungs: Rungs) -> Finding | None:
    """Return what is wrong with the rows themselves: other prompts, or responses moved."""
    for name in (Rung.DATA, Rung.ROLLOUT):
        finding = _first(rungs, name)
        if finding is not None and finding.symptom is None:
            return finding
    return None


def _ids(rungs: Rungs, name: Rung) -> tuple[str, ...]:
    findings = rungs[name].findings if name in rungs else ()
    return tuple(f.id for f in findings if f.severity is not Severity.INFO)


def _short(prompt: str, response: str) -> str:
    return f"{prompt[-60:]!r} -> {response[:100]!r}"
