"""What acceptance says, in both languages."""

from __future__ import annotations

import math

from align.acceptance.judgement import Judgement, Result
from align.core.text import Text
from align.curves.criterion import Criterion, Outcome

_FORMULAS = {
    "coverage": Text("coverage", "覆盖范围"),
    "absolute_error": Text("absolute error of the curve", "曲线绝对误差"),
    "convergence_error": Text("convergence error", "收敛误差"),
    "mean_error": Text("mean error", "平均误差"),
    "failing_steps": Text("failing steps", "超差步数"),
    "seed_band": Text("seed band", "种子区间"),
    "evaluation": Text("evaluation", "评测"),
}
_OUTCOMES = {
    Outcome.PASS: Text("pass", "通过"),
    Outcome.FAIL: Text("fail", "不通过"),
    Outcome.UNDECIDED: Text("undecided", "未定"),
    Outcome.TOO_SHORT: Text("too short", "步数太少"),
    Outcome.MISSING: Text("not recorded", "未记录"),
}
_IN_COUNTS = ("failing_steps",)
_IN_UNITS = ("seed_band",)


def formula_name(name: str) -> Text:
    """Name a formula."""
    return _FORMULAS[name]


def outcome_name(outcome: Outcome) -> Text:
    """Name an outcome."""
    return _OUTCOMES[outcome]


def subject_of(result: Result) -> Text:
    """Say what was judged: formula, metric, task."""
    criterion = result.criterion
    name = formula_name(criterion.name)
    about = criterion.subject if result.task is None else result.task
    if not about:
        return name
    if result.task is None:
        return Text(f"{name.en}, {about}", f"{name.zh}（{about}）")
    return Text(f"{name.en}, task {about}", f"{name.zh}（任务 {about}）")


def amount(criterion: Criterion, value: float) -> str:
    """Show an error in the unit of its formula: a share, a count, the metric's own."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞"
    if criterion.name in _IN_COUNTS:
        return f"{value:.0f}"
    return f"{value:.3g}" if criterion.name in _IN_UNITS else f"{value:.1%}"


def decision_sentence(judgement: Judgement) -> Text:
    """Say what was decided, and because of what."""
    name = judgement.policy.name
    outcome = judgement.outcome
    if outcome is Outcome.PASS:
        return Text(
            f"Accepted under policy {name}: every clause passes.",
            f"按判据 {name} 通过验收：所有条款均通过。",
        )
    if outcome is Outcome.MISSING:
        return Text(
            f"Nothing could be judged under policy {name}: what it asks for is not recorded.",
            f"按判据 {name} 无法判定：所需数据均未记录。",
        )
    concerned = [
        r
        for r in judgement.results
        if (r.outcome is Outcome.FAIL) == (outcome is Outcome.FAIL)
        and r.outcome is not Outcome.PASS
    ]
    listed = [(subject_of(r), outcome_name(r.outcome)) for r in concerned]
    en = "; ".join(f"{subject.en} ({state.en})" for subject, state in listed)
    zh = "；".join(f"{subject.zh}：{state.zh}" for subject, state in listed)
    if outcome is Outcome.FAIL:
        return Text(f"Not accepted under policy {name}: {en}.", f"按判据 {name} 未通过验收：{zh}。")
    return Text(
        f"Not decided under policy {name}: nothing fails, but not all is shown: {en}.",
        f"按判据 {name} 尚不能判定：没有不通过的条款，但以下条款未能证明：{zh}。",
    )


def power_sentence(judgement: Judgement) -> Text:
    """Say how small a difference these runs could have shown, for each curve that was judged."""
    known = [
        r.criterion
        for r in judgement.results
        if r.task is None and math.isfinite(r.criterion.detectable)
    ]
    en = [
        f"{c.num_steps} steps can show {amount(c, c.detectable)} ({formula_name(c.name).en})"
        for c in known
    ]
    zh = [
        f"{c.num_steps} 步能显示出 {amount(c, c.detectable)}（{formula_name(c.name).zh}）"
        for c in known
    ]
    if not known:
        return Text("No curve was judged.", "没有判定任何曲线。")
    return Text(f"With this noise {', '.join(en)}.", f"在该噪声下，{'，'.join(zh)}的差异。")


def noise_sentence(judgement: Judgement) -> Text:
    """Say what the reference's own repeats differ by."""
    if not judgement.num_repeats:
        return Text(
            "No repeat of the reference was given: the interval knows only the noise within these "
            "two runs.",
            "未提供参考的重复运行：区间只包含这两次运行内部的噪声。",
        )
    floors = [(r, r.floor) for r in judgement.results if math.isfinite(r.floor)]
    en = "; ".join(f"{subject_of(r).en}: {amount(r.criterion, f)}" for r, f in floors)
    zh = "；".join(f"{subject_of(r).zh}：{amount(r.criterion, f)}" for r, f in floors)
    num = judgement.num_repeats
    return Text(
        f"Greatest error between two of {num + 1} runs of the reference: {en or 'not recorded'}.",
        f"参考 {num + 1} 次运行两两之间的最大误差：{zh or '未记录'}。",
    )
