"""Rung 15: are benchmark results equal, given the sampling error?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from align.core.evaluation import Score
from align.core.figure import Cell, Column, Table
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.evals.categories import Category, categories_of, hidden_of
from align.evals.judge import (
    TOLERANCES,
    Judgement,
    Standing,
    at_chance,
    cancelling,
    judge,
)
from align.evals.pair import EvalPair, Z, pair_scores, variants_of
from dumps.store.run_data import RunData

_SPEED = ("batch_size", "max-num-seqs", "max_num_seqs")  # how fast, not what is answered
_NO_EFFECT = Mechanism(Rung.EVALS, Strength.NONE)
_STANDINGS = {
    Standing.WITHIN: Text("within", "以内"),
    Standing.BEYOND: Text("beyond", "超出"),
    Standing.UNDECIDED: Text("undecided", "无法判定"),
}


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Compare the benchmark results of two runs."""
    absent = [n for n, d in (("reference", reference), ("candidate", candidate)) if not d.evals]
    if absent:
        side = "both" if len(absent) == 2 else absent[0]
        missing = (missing_artifact(Rung.EVALS, side),)
        said = Text("No benchmark results were found on both sides.", "没有在两侧都找到评测结果。")
        return RungResult(Rung.EVALS, RungStatus.MISSING, said, missing=missing)
    pairs, one_sided = pair_scores(
        reference.evals, candidate.evals, _variants(reference, candidate)
    )
    if not pairs:
        return RungResult(
            Rung.EVALS,
            RungStatus.UNDECIDED,
            Text(
                f"No task and metric is on both sides; on one: {', '.join(one_sided[:5])}.",
                f"没有两侧共有的任务与指标；仅一侧有：{', '.join(one_sided[:5])}。",
            ),
        )
    judged = judge(pairs)
    categories = categories_of(judged)
    found = (
        *_differences(judged),
        *_settings(pairs),
        *_chance(pairs),
        *_hidden(judged),
        *_hidden_totals(categories),
    )
    findings = tuple(sorted(found, key=lambda f: f.severity.rank))
    return RungResult(
        Rung.EVALS,
        _status(judged, findings),
        _summary(judged, one_sided),
        findings,
        tables=tuple(t for t in (_table(judged), _category_table(categories)) if t is not None),
    )


def _variants(reference: RunData, candidate: RunData) -> tuple[str | None, str | None]:
    """Choose rows of one table that holds both sides: its first device, then its second."""
    same = {r.source for r in reference.evals} == {r.source for r in candidate.evals}
    variants = variants_of(reference.evals)
    return (variants[0], variants[1]) if same and len(variants) == 2 else (None, None)


def _status(judged: Sequence[Judgement], findings: Sequence[Finding]) -> RungStatus:
    if any(finding.severity is Severity.ERROR for finding in findings):
        return RungStatus.DIVERGED
    decided = all(j.standing["trained"] is Standing.WITHIN for j in judged)
    warned = any(finding.severity is Severity.WARNING for finding in findings)
    return RungStatus.ALIGNED if decided and not warned else RungStatus.UNDECIDED


def _summary(judged: Sequence[Judgement], one_sided: Sequence[str]) -> Text:
    count = {s: sum(j.standing["trained"] is s for j in judged) for s in Standing}
    rest = len(one_sided)
    return Text(
        f"{len(judged)} scores compared against 2 points: {count[Standing.WITHIN]} within, "
        f"{count[Standing.BEYOND]} beyond, {count[Standing.UNDECIDED]} undecided (too few "
        f"questions); {rest} on one side only.",
        f"以 2 个百分点为界比较了 {len(judged)} 个得分：{count[Standing.WITHIN]} 个在界内，"
        f"{count[Standing.BEYOND]} 个超出，{count[Standing.UNDECIDED]} 个无法判定（题目太少）；"
        f"{rest} 个仅一侧有。",
    )


def _differences(judged: Sequence[Judgement]) -> Iterator[Finding]:
    """Yield scores that differ by more than the tolerance, or really differ within it."""
    for found in judged:
        beyond = [n for n, s in found.standing.items() if s is Standing.BEYOND]
        if not found.is_real:  # of many scores some lie beyond by the questions drawn
            continue
        limit = max((TOLERANCES[name] for name in beyond), default=0.0)
        severity = Severity.ERROR if "trained" in beyond else Severity.WARNING
        pair = found.pair
        interval = Z * (pair.stderr or 0)
        what = Text(
            f"more than {limit:.0%} apart" if beyond else "a real difference below 1 point",
            f"相差超过 {limit:.0%}" if beyond else "小于 1 个百分点但确实存在的差异",
        )
        yield Finding(
            id=f"evals.{_word(pair.reference.score)}",
            rung=Rung.EVALS,
            severity=severity,
            title=Text(
                f"{pair.name}: {_share(pair.reference.score)} in the reference, "
                f"{_share(pair.candidate.score)} in the candidate: {what.en}",
                f"{pair.name}：参考为 {_share(pair.reference.score)}，被测为 "
                f"{_share(pair.candidate.score)}：{what.zh}",
            ),
            reference=pair.reference.score.value,
            candidate=pair.candidate.score.value,
            evidence=_evidence(pair),
            why=Text(
                f"The difference is {100 * pair.difference:+.2f} points, ± {100 * interval:.2f} "
                "(95 %, from the number of questions); which questions were drawn does not explain "
                "it.",
                f"差值为 {100 * pair.difference:+.2f} 个百分点，± {100 * interval:.2f}"
                "（95 %，由题目数决定）；题目抽样无法解释该差异。",
            ),
            fix=Text(
                "With the same weights: compare the engine (precision, chat template, stop tokens, "
                "max tokens). After training: look at the earlier rungs.",
                "权重相同时：检查推理引擎（精度、对话模板、停止符、最大长度）；"
                "训练之后：查看前面的环节。",
            ),
        )


def _settings(pairs: Sequence[EvalPair]) -> Iterator[Finding]:
    """Report settings that differ: what they explain is no difference of the models."""
    seen: dict[str, EvalPair] = {}
    for pair in pairs:
        ours, theirs = _stated(pair, Side.REFERENCE), _stated(pair, Side.CANDIDATE)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                seen.setdefault(name, pair)
    for name, pair in seen.items():
        values = [_stated(pair, side).get(name) for side in (Side.REFERENCE, Side.CANDIDATE)]
        matters = None not in values and name not in _SPEED
        shown = [value if value is not None else "not stated" for value in values]
        yield Finding(
            id=f"evals.settings.{name.replace(' ', '_').replace('-', '_')}",
            rung=Rung.EVALS,
            severity=Severity.WARNING if matters else Severity.INFO,
            title=Text(
                f"{name} of {pair.reference.score.task}: {shown[0]} in the reference, {shown[1]} "
                "in the candidate",
                f"{pair.reference.score.task} 的 {name}：参考为 {shown[0]}，被测为 {shown[1]}",
            ),
            reference=values[0],
            candidate=values[1],
            evidence=_evidence(pair),
            why=Text(
                "Scores made with other settings do not compare the models: answers are cut, "
                "sampled or asked for otherwise.",
                "设置不同的得分不能用来比较模型：回答的截断、采样或提问方式不同。",
            ),
            fix=Text(
                "Run both with the same generation settings, few-shot examples and template.",
                "两侧使用相同的生成参数、少样本示例与模板重新评测。",
            ),
            mechanism=_NO_EFFECT,
        )


def _stated(pair: EvalPair, side: Side) -> dict[str, str]:
    score = (pair.reference if side is Side.REFERENCE else pair.candidate).score
    settings = dict(score.settings)
    if score.repeats > 1:
        settings["repeats"] = str(score.repeats)
    return settings


def _chance(pairs: Sequence[EvalPair]) -> Iterator[Finding]:
    """Report a side that scores what guessing scores while the other does not."""
    for pair in pairs:
        ours, theirs = at_chance(pair)
        if ours == theirs:
            continue
        side = Side.REFERENCE if ours else Side.CANDIDATE
        named = Text("reference", "参考") if ours else Text("candidate", "被测")
        yield Finding(
            id=f"evals.chance.{_word(pair.reference.score)}",
            rung=Rung.EVALS,
            severity=Severity.ERROR,
            title=Text(
                f"{pair.name}: the {named.en} scores what guessing scores ({pair.chance:.0%})",
                f"{pair.name}：{named.zh}的得分等于随机猜测（{pair.chance:.0%}）",
            ),
            reference=pair.reference.score.value,
            candidate=pair.candidate.score.value,
            evidence=tuple(e for e in _evidence(pair) if e.side is side),
            why=Text(
                "The engine or the answer extraction is broken on this side; in the field a prefix "
                "cache with graph mode gave MMLU 0.2584.",
                "该侧的推理引擎或答案提取有问题；实践中前缀缓存与图模式同时开启曾使 MMLU 仅得 "
                "0.2584。",
            ),
            fix=Text(
                "Read some of its answers, then switch off prefix caching and graph mode.",
                "查看若干回答，然后关闭前缀缓存与图模式。",
            ),
        )


def _hidden(judged: Sequence[Judgement]) -> Iterator[Finding]:
    for group, gain, loss in cancelling(judged):
        first, second = gain.pair, loss.pair
        yield Finding(
            id=f"evals.cancelling.{group.replace(' ', '_')}",
            rung=Rung.EVALS,
            severity=Severity.WARNING,
            title=Text(
                f"{group}: {first.name} rises by {100 * first.difference:.1f} points and "
                f"{second.name} falls by {-100 * second.difference:.1f}; the total hides it",
                f"{group}：{first.name} 上升 {100 * first.difference:.1f} 个百分点，"
                f"{second.name} 下降 {-100 * second.difference:.1f} 个；总分掩盖了这一点",
            ),
            reference=second.reference.score.value,
            candidate=second.candidate.score.value,
            evidence=(*_evidence(first), *_evidence(second)),
            why=Text(
                "Both shifts are larger than the drawn questions explain. In the field mathematics "
                "rose while behaviour fell, with an equal total.",
                "两个变化都大于题目抽样所能解释的范围。实践中曾出现数学上升、行为下降而总分相等。",
            ),
            fix=Text(
                "Accept or reject per category, and compare the reward of each task.",
                "按类别验收，并逐任务比较奖励。",
            ),
        )


def _hidden_totals(categories: Sequence[Category]) -> Iterator[Finding]:
    """Report categories that cancel in the total of all tasks."""
    for hidden in hidden_of(categories):
        gain, loss = hidden.gain, hidden.loss
        shown = [f"{c.name} {100 * c.difference:+.1f}" for c in (gain, loss)]
        yield Finding(
            id=f"evals.cancelling.total.{hidden.metric.replace(' ', '_')}",
            rung=Rung.EVALS,
            severity=Severity.WARNING,
            title=Text(
                f"The total of {hidden.metric} moves by {100 * hidden.total:+.1f} points and hides "
                f"{shown[0]} and {shown[1]}",
                f"{hidden.metric} 的总分只变化 {100 * hidden.total:+.1f} 个百分点，"
                f"掩盖了 {shown[0]} 与 {shown[1]}",
            ),
            reference=None,
            candidate=hidden.total,
            evidence=(*_evidence(gain.pairs[0]), *_evidence(loss.pairs[0])),
            why=Text(
                "Both shifts are larger than the drawn questions explain, over all categories. In "
                "the field mathematics rose while behaviour fell, with an equal total.",
                "计入全部类别后，两个变化都大于题目抽样所能解释的范围。"
                "实践中曾出现数学上升、行为下降而总分相等。",
            ),
            fix=Text(
                "Accept or reject per category, and compare the reward of each task.",
                "按类别验收，并逐任务比较奖励。",
            ),
        )


def _category_table(categories: Sequence[Category]) -> Table | None:
    """Show the mean difference of every category; None where no task names one."""
    if all(category.is_task for category in categories):
        return None
    return Table(
        "evals.categories",
        Text("By category", "按类别"),
        (
            Column("category", Text("category", "类别")),
            Column("metric", Text("metric", "指标")),
            Column("scores", Text("scores", "得分数"), numeric=True),
            Column("difference", Text("points", "百分点"), numeric=True),
            Column("interval", Text("± 95 %", "± 95 %"), numeric=True),
            Column("real", Text("beyond chance", "超出偶然")),
        ),
        tuple(
            (
                c.name,
                c.metric,
                len(c.pairs),
                round(100 * c.difference, 2),
                None if c.stderr is None else round(100 * Z * c.stderr, 2),
                _YES if c.is_real else _NO,
            )
            for c in sorted(categories, key=lambda c: (-abs(c.difference), c.name))
        ),
    )


_YES, _NO = Text("yes", "是"), Text("no", "否")


def _table(judged: Sequence[Judgement]) -> Table:
    return Table(
        "evals.scores",
        Text("Scores", "得分"),
        (
            Column("task", Text("task", "任务")),
            Column("reference", Text("reference", "参考"), numeric=True),
            Column("candidate", Text("candidate", "被测"), numeric=True),
            Column("difference", Text("points", "百分点"), numeric=True),
            Column("interval", Text("± 95 %", "± 95 %"), numeric=True),
            Column("answers", Text("answers a question", "每题回答数")),
            Column("error", Text("error from", "误差来源")),
            Column("inference", Text("1 % (same weights)", "1 %（权重相同）")),
            Column("trained", Text("2 % (trained)", "2 %（训练后）")),
            Column("needed", Text("questions needed for 2 %", "判定 2 % 所需题目数"), numeric=True),
        ),
        tuple(
            _row(found)
            for found in sorted(judged, key=lambda j: (-abs(j.pair.difference), j.pair.name))
        ),
    )


def _row(found: Judgement) -> tuple[Cell, ...]:
    pair = found.pair
    error = pair.stderr
    return (
        pair.name,
        round(pair.reference.score.value, 4),
        round(pair.candidate.score.value, 4),
        round(100 * pair.difference, 2),
        None if error is None else round(100 * Z * error, 2),
        " / ".join(str(side.score.repeats) for side in (pair.reference, pair.candidate)),
        _error_from(pair),
        _STANDINGS[found.standing["inference"]],
        _STANDINGS[found.standing["trained"]],
        found.questions_needed["trained"],
    )


def _error_from(pair: EvalPair) -> Text:
    """Say what the error of a difference was taken from."""
    if pair.stderr is None:
        return Text("not known", "未知")
    if pair.is_paired:
        return Text("each question on both sides", "两侧逐题")
    sides = pair.reference.score, pair.candidate.score
    if all(score.answers is not None for score in sides):
        return Text("each side's questions", "各侧逐题")
    stated = any(score.stderr is not None for score in sides)
    return Text("as stated", "文件给出") if stated else Text("binomial", "二项分布")


def _evidence(pair: EvalPair) -> tuple[Evidence, ...]:
    sides = ((Side.REFERENCE, pair.reference), (Side.CANDIDATE, pair.candidate))
    return tuple(
        Evidence(m.source, side, m.score.line, pair.name, values=(m.score.value,))
        for side, m in sides
    )


def _share(score: Score) -> str:
    return f"{100 * score.value:.2f} %"


def _word(score: Score) -> str:
    return "_".join(f"{score.task}.{score.metric}".lower().replace("-", "_").split())
