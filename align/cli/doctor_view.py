"""Show a diagnosis as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from align.cli.rung_view import finding_lines, table_lines
from align.core.figure import Column, Table
from align.core.finding import Severity
from align.core.text import Text
from align.doctor.advice import Judged, State
from align.doctor.case import Case
from align.doctor.diagnosis import Diagnosis, Part
from align.doctor.stack import Stack, Standing, stack_table
from align.doctor.timing import LABELS, StepTime
from align.environment.variables import MEANINGS


def as_text(diagnosis: Diagnosis, lang: str) -> str:
    """Return the diagnosis as lines for a terminal."""
    lines = [_identity(diagnosis, lang)]
    if diagnosis.findings or {Part.PROBLEMS, Part.ENVIRONMENT} & set(diagnosis.parts):
        lines += ["", _count(diagnosis).in_language(lang)]
    for finding in diagnosis.findings:
        lines += ["", *finding_lines(finding, lang)]
    for text in diagnosis.assumptions:
        lines += ["", f"{_ASSUMED.in_language(lang)}: {text.in_language(lang)}"]
    if diagnosis.stack is not None:
        lines += ["", *_stack_lines(diagnosis.stack, lang)]
    if diagnosis.variables:
        lines += ["", *table_lines(_variables_table(diagnosis), lang)]
    if diagnosis.case is not None:
        lines += ["", *_case_lines(diagnosis.case, lang), *_advice_lines(diagnosis, lang)]
    return "\n".join(lines)


_ASSUMED = Text("note", "说明")


def _identity(diagnosis: Diagnosis, lang: str) -> str:
    summary = diagnosis.summary
    unstated = Text("(not stated)", "（未说明）").in_language(lang)
    stated = (summary.framework, summary.framework_version, summary.device)
    return f"{summary.label}: {', '.join(fact or unstated for fact in stated)}"


def _count(diagnosis: Diagnosis) -> Text:
    num = {s: sum(f.severity is s for f in diagnosis.findings) for s in Severity}
    if not diagnosis.findings:
        return Text("no known problem", "未发现已知问题")
    return Text(
        f"{num[Severity.ERROR]} errors, {num[Severity.WARNING]} warnings, "
        f"{num[Severity.INFO]} notes",
        f"{num[Severity.ERROR]} 个错误，{num[Severity.WARNING]} 个警告，"
        f"{num[Severity.INFO]} 条提示",
    )


def _stack_lines(stack: Stack, lang: str) -> Iterator[str]:
    yield standing(stack).in_language(lang)
    if stack.closest:
        yield from table_lines(stack_table(stack), lang)
        for match in stack.closest:
            yield f"  {match.versions.name}: {match.versions.source}"


def standing(stack: Stack) -> Text:
    """Return what a run's versions amount to, as a sentence."""
    if stack.standing is Standing.NOT_ON_NPU:
        return Text(
            "versions: not on an NPU; the table holds Ascend stacks",
            "版本：不在 NPU 上运行；配套表仅包含昇腾软件栈",
        )
    if stack.standing is Standing.UNKNOWN:
        stated = ", ".join(f"{name} {fact.value}" for name, fact in stack.versions.items())
        return Text(
            f"versions: unknown: too few are stated ({stated or 'none'}); write torch, torch_npu, "
            "CANN and the others into the manifest (align run init), or record pip list",
            f"版本：未知：说明的版本太少（{stated or '无'}）；请将 torch、torch_npu、CANN 等写入"
            "清单（align run init），或记录 pip list",
        )
    best = stack.closest[0]
    if stack.standing is Standing.MATCHES:
        return Text(
            f"versions: match {best.versions.name} ({len(best.agrees)} components compared)",
            f"版本：与 {best.versions.name} 一致（比较了 {len(best.agrees)} 个组件）",
        )
    deviates = ", ".join(best.deviates)
    return Text(
        f"versions: no known set; nearest is {best.versions.name}, which differs in {deviates}",
        f"版本：不属于任何已知组合；最接近 {best.versions.name}，不同之处：{deviates}",
    )


def _variables_table(diagnosis: Diagnosis) -> Table:
    return Table(
        "doctor.variables",
        Text("Environment variables", "环境变量"),
        (
            Column("name", Text("variable", "变量")),
            Column("value", Text("value", "取值")),
            Column("meaning", Text("meaning", "含义")),
        ),
        tuple(
            (name, fact.value, MEANINGS.get(name))
            for name, fact in sorted(diagnosis.variables.items())
        ),
    )


def _case_lines(case: Case, lang: str) -> Iterator[str]:
    if case.time is None:
        yield Text(
            "step time: unknown: no time of a step is logged", "单步耗时：未知：日志中没有单步耗时"
        ).in_language(lang)
    else:
        yield from _time_lines(case.time, lang)
    yield _rate(case).in_language(lang)
    if case.capacity is None:
        yield Text(
            "largest rollout micro-batch: unknown (batch size, n, devices or rollout parallel "
            "sizes are not stated)",
            "最大推理 micro-batch：未知（未说明 batch、n、卡数或推理并行度）",
        ).in_language(lang)
    else:
        size = case.capacity
        whole = "" if size.is_whole else Text(" (not whole!)", "（不能整除！）").in_language(lang)
        yield (
            Text(
                f"largest rollout micro-batch and max_num_seqs: {size.sequences:g} "
                f"({size.replicas:g} replicas)",
                f"最大推理 micro-batch 与 max_num_seqs：{size.sequences:g}"
                f"（{size.replicas:g} 个推理副本）",
            ).in_language(lang)
            + whole
        )
    if case.memory:
        yield from table_lines(_memory_table(case), lang)


def _memory_table(case: Case) -> Table:
    return Table(
        "doctor.memory",
        Text(
            "Memory of a step's tensors on one device (estimate, without activations)",
            "单卡上一步张量的显存（估算，不含激活值）",
        ),
        (
            Column("name", Text("tensors", "张量")),
            Column("gib", Text("GiB", "GiB"), numeric=True),
            Column("formula", Text("formula", "公式")),
        ),
        tuple((m.name, float(f"{m.num_bytes / 2**30:.3g}"), m.formula) for m in case.memory),
    )


def _time_lines(time: StepTime, lang: str) -> Iterator[str]:
    without = Text(", the first left out", "，不含第一步") if time.skips_first else Text("", "")
    yield Text(
        f"step time: {time.seconds:.4g} s (median of {time.num_steps} steps{without.en})",
        f"单步耗时：{time.seconds:.4g} 秒（{time.num_steps} 步的中位数{without.zh}）",
    ).in_language(lang)
    yield from table_lines(_time_table(time), lang)
    if time.overlapping:
        yield Text(
            "stages run at the same time here, so they add up to more than the step",
            "各阶段存在重叠，合计超过单步耗时",
        ).in_language(lang)
    if time.slowest is not None:
        label = LABELS[time.slowest.stage]
        yield Text(
            f"shorten first: {label.en}, {time.slowest.share:.0%} of the step",
            f"优先优化：{label.zh}，占单步的 {time.slowest.share:.0%}",
        ).in_language(lang)


def _time_table(time: StepTime) -> Table:
    return Table(
        "doctor.step_time",
        Text("Where the time goes", "耗时拆解"),
        (
            Column("stage", Text("stage", "阶段")),
            Column("seconds", Text("seconds", "秒"), numeric=True),
            Column("share", Text("% of step", "占比 %"), numeric=True),
        ),
        tuple(
            (LABELS[part.stage], float(f"{part.seconds:.4g}"), round(100 * part.share, 1))
            for part in time.parts
        ),
    )


def _rate(case: Case) -> Text:
    rate = case.rate
    if rate is None or (rate.computed is None and rate.logged is None):
        lacking = ", ".join(rate.unknown) if rate else "response_length/mean, seconds a step"
        return Text(f"throughput: unknown ({lacking} missing)", f"吞吐：未知（缺少 {lacking}）")
    value = rate.computed if rate.computed is not None else rate.logged
    card = ""
    if case.on_npu and case.machine != "a2":
        card = f"; {rate.per_a3_card:.5g} per A3 card (2 dies)"
    text = f"{value:.5g} tokens/s per device (die){card}"
    if rate.agrees is None:
        return Text(f"throughput: {text}", f"吞吐：{text}")
    same = f"logged {rate.logged:.5g}, largest difference at a step {rate.disagreement:.2g}"
    doubt = Text("", "")
    if not rate.agrees:
        doubt = Text(
            "; they should agree: batch size, n or devices are not those of the run, or rows were "
            "filtered",
            "；两者本应一致：batch、n 或卡数与实际不符，或有样本被过滤",
        )
    return Text(f"throughput: {text}; {same}{doubt.en}", f"吞吐：{text}；{same}{doubt.zh}")


def _advice_lines(diagnosis: Diagnosis, lang: str) -> Iterator[str]:
    framework = diagnosis.summary.framework or ""
    useful = [j for j in diagnosis.advice if j.answer.state is State.ADVISED]
    unknown = [j for j in diagnosis.advice if j.answer.state is State.UNKNOWN]
    yield ""
    if not useful:
        yield Text("nothing to switch on that is known", "没有可确定的优化建议").in_language(lang)
    for number, judged in enumerate(useful, start=1):
        advice = judged.advice
        yield f"{number}. {advice.title.in_language(lang)} [{advice.id}]"
        for label, text in _details(judged, framework):
            yield f"   {label.in_language(lang)}: {text.in_language(lang)}"
    if unknown:
        yield ""
        yield Text("cannot be told:", "无法判断：").in_language(lang)
        for because in dict.fromkeys(judged.answer.because for judged in unknown):
            about = [
                j.advice.title.in_language(lang) for j in unknown if j.answer.because == because
            ]
            yield f"  {because.in_language(lang)}: {'; '.join(about)}"


def _details(judged: Judged, framework: str) -> Iterator[tuple[Text, Text]]:
    advice = judged.advice
    yield Text("now", "现状"), judged.answer.because
    yield Text("gain", "收益"), advice.gain
    yield Text("holds when", "适用条件"), advice.holds_when
    if framework in advice.how:
        yield Text("set", "设置"), Text(advice.how[framework], advice.how[framework])
    if advice.trades_precision is not None:
        rung = advice.trades_precision.value
        yield (
            Text("changes numbers", "影响数值"),
            Text(f"check the {rung} rung again afterwards", f"之后请重新检查 {rung} 环节"),
        )
    yield Text("source", "来源"), Text(advice.source, advice.source)
