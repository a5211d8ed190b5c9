"""What the data rung says, in words."""

from __future__ import annotations

from dataclasses import replace

from align.core.finding import (
    Evidence,
    Finding,
    Mechanism,
    Severity,
    Side,
    Strength,
    Symptom,
)
from align.core.rung import Rung
from align.core.text import Text
from align.data.constant_edit import ConstantEdit
from align.data.order_diff import OrderCause
from align.data.prompt_lengths import PromptLengths
from align.data.prompt_order import PromptOrder
from dumps.store.rollout_index import RowText

_ACTS_ON_DATA = Mechanism(Rung.DATA, Strength.SEMANTIC)
_QUOTE = 200

ORDER_FIX = Text(
    "Make seed, shuffle, the sampler's version, num_workers, length filter, batch size and data "
    "file equal, delete cached index files, and compare again; verl up to 0.6.0 defaults to seed "
    "1, later versions to none, and MindSpeed-RL of 2025-04 shuffles as Megatron does.",
    "请统一 seed、shuffle、采样器版本、num_workers、长度过滤、batch 大小与数据文件，"
    "删除缓存的索引文件后重新比较；verl 0.6.0 及以前默认 seed 为 1，之后默认不设 seed，"
    "2025 年 4 月的 MindSpeed-RL 按 Megatron 方式打乱数据。",
)
ORDER_WHY = Text(
    "From this step on the two runs train on different rows, so rollouts, rewards and gradients "
    "cannot be compared step by step.",
    "从这一步起两次运行训练的样本不同，rollout、reward 和梯度都无法逐步对照。",
)
TEMPLATE_FIX = Text(
    "Render one question in both frameworks and make the chat template, the system prompt and the "
    "generation prompt equal; MindSpeed-RL applies prompt_type from templates.json offline, verl "
    "the tokenizer's chat_template at run time.",
    "用同一道题在两侧渲染，统一 chat template、system prompt 与 generation prompt；"
    "MindSpeed-RL 在离线预处理时使用 templates.json 的 prompt_type，"
    "verl 在运行时使用分词器的 chat_template。",
)
TEMPLATE_WHY = Text(
    "The model is asked the same questions in other words: its answers and its log_probs differ "
    "from the first step on.",
    "模型看到的是同样的题目、不同的文本，因此从第一步起回复和 log_probs 就不同。",
)


def quoted(text: str) -> str:
    """Return a text on one line, cut to what evidence may hold."""
    line = text.replace("\n", "\\n")
    return line if len(line) <= _QUOTE else line[: _QUOTE - 1] + "…"


def order_by_prompts(
    order: PromptOrder, only_reference: list[RowText], only_candidate: list[RowText]
) -> Finding:
    """Say that the prompts of a step differ, and how much of the rest is shared."""
    first = order.first_divergent
    assert first is not None
    in_reference, in_candidate, in_both = order.num_distinct
    rest = (
        Text(
            "Over all recorded steps both saw the same prompts equally often: the order differs, "
            "the data do not.",
            "就全部已记录的步而言，两侧的 prompt 及其次数完全相同：不同的是顺序，而非数据。",
        )
        if order.same_overall
        else Text(
            f"Over all recorded steps {in_both} distinct prompts are common to both, of "
            f"{in_reference} and {in_candidate}: another order or other data; dumps of so many "
            "steps cannot tell which.",
            f"就全部已记录的步而言，两侧分别有 {in_reference} 与 {in_candidate} 条不同的 prompt，"
            f"其中 {in_both} 条相同：可能是顺序不同，也可能是数据不同，仅凭这些步无法区分。",
        )
    )
    return Finding(
        id="data.order.first_divergent_step",
        rung=Rung.DATA,
        severity=Severity.ERROR,
        title=Text(
            f"prompts differ from step {first.step} on: {first.num_common} of "
            f"{first.num_reference} are the same there",
            f"从第 {first.step} 步起 prompt 不同：该步 {first.num_reference} 条中"
            f"有 {first.num_common} 条相同",
        ),
        reference=first.step,
        candidate=first.step,
        evidence=(
            *_quotes(only_reference, Side.REFERENCE),
            *_quotes(only_candidate, Side.CANDIDATE),
        ),
        why=Text(f"{ORDER_WHY.en} {rest.en}", f"{ORDER_WHY.zh}{rest.zh}"),
        fix=ORDER_FIX,
        mechanism=_ACTS_ON_DATA,
    )


def template_by_prompts(edit: ConstantEdit, reference: RowText, candidate: RowText) -> Finding:
    """Say in which span all prompts differ alike."""
    old, new = max(edit.spans, key=lambda span: len(span[0]) + len(span[1]))
    return Finding(
        id="data.prompt_template",
        rung=Rung.DATA,
        severity=Severity.ERROR,
        title=Text(
            f"the same questions are rendered with another template: {quoted(old)!r} in the "
            f"reference, {quoted(new)!r} in the candidate",
            f"同样的题目用不同的模板渲染：参考为 {quoted(old)!r}，被测为 {quoted(new)!r}",
        ),
        reference=quoted(old),
        candidate=quoted(new),
        evidence=(
            *_quotes([reference], Side.REFERENCE),
            *_quotes([candidate], Side.CANDIDATE),
            Evidence(
                source=f"the same edit in {edit.num_pairs} of {edit.num_pairs} prompt pairs",
                side=Side.BOTH,
                values=tuple(text for span in edit.spans for text in map(quoted, span)),
            ),
        ),
        why=TEMPLATE_WHY,
        fix=TEMPLATE_FIX,
        mechanism=_ACTS_ON_DATA,
    )


def order_by_lengths(step: int, pair: PromptLengths) -> Finding:
    """Say at which step prompt lengths part."""
    at = pair.steps.tolist().index(step)
    a, b = int(pair.reference_at[at]), int(pair.candidate_at[at])
    num_equal = int((~pair.differs).sum())
    return Finding(
        id="data.order.first_divergent_step",
        rung=Rung.DATA,
        severity=Severity.ERROR,
        title=Text(
            f"prompt lengths differ from step {step} on: {pair.reference.name} is equal at "
            f"{num_equal} of {len(pair.steps)} common steps",
            f"从第 {step} 步起 prompt 长度不同：{len(pair.steps)} 个共同的步中，"
            f"{pair.reference.name} 有 {num_equal} 步相同",
        ),
        reference=float(pair.reference.values[a]),
        candidate=float(pair.candidate.values[b]),
        evidence=_length_evidence(pair, a, b),
        why=Text(
            f"{ORDER_WHY.en} The lengths say that the rows, or their tokens, differ; they do not "
            "say which.",
            f"{ORDER_WHY.zh}长度统计表明样本或其 token 不同，但无法说明是哪一种。",
        ),
        fix=ORDER_FIX,
        symptom=_symptom(pair, step),
    )


def template_by_lengths(pair: PromptLengths, offset: float) -> Finding:
    """Say that every prompt is longer by the same number of tokens."""
    longer = Side.CANDIDATE if offset > 0 else Side.REFERENCE
    a, b = int(pair.reference_at[0]), int(pair.candidate_at[0])
    zh_side = "被测" if longer is Side.CANDIDATE else "参考"
    return Finding(
        id="data.prompt_template",
        rung=Rung.DATA,
        severity=Severity.ERROR,
        title=Text(
            f"the {longer.value}'s prompts are {abs(offset):.6g} tokens longer at every one of "
            f"{len(pair.steps)} steps: another template, system prompt or special "
            "token",
            f"{zh_side}的 prompt 在全部 {len(pair.steps)} 步都长 {abs(offset):.6g} 个 token："
            "模板、system prompt 或特殊 token 不同",
        ),
        reference=float(pair.reference.values[a]),
        candidate=float(pair.candidate.values[b]),
        evidence=_length_evidence(pair, a, b),
        why=TEMPLATE_WHY,
        fix=TEMPLATE_FIX,
        symptom=_symptom(pair, int(pair.steps[0])),
    )


def other_ground_truths(
    num_differing: int, num_compared: int, reference: RowText, candidate: RowText
) -> Finding:
    """Say that the same prompts carry other labels."""
    return Finding(
        id="data.ground_truth",
        rung=Rung.DATA,
        severity=Severity.WARNING,
        title=Text(
            f"{num_differing} of {num_compared} common prompts have another ground truth",
            f"{num_compared} 条共同的 prompt 中有 {num_differing} 条的标准答案不同",
        ),
        reference=num_compared - num_differing,
        candidate=num_compared,
        evidence=(
            *_quotes([reference], Side.REFERENCE),
            *_quotes([candidate], Side.CANDIDATE),
        ),
        why=Text(
            "Rule rewards compare the response with the ground truth, so the same response gets "
            "another score.",
            "规则奖励把回复与标准答案比较，因此同样的回复会得到不同的分数。",
        ),
        fix=Text(
            "Compare the label columns of both data sets for the quoted prompt.",
            "请对照引用的 prompt，检查两侧数据集的标签列。",
        ),
        mechanism=Mechanism(Rung.REWARD, Strength.SEMANTIC),
    )


def lost_ground_truths(
    lost: Side, num_rows: int, reference: RowText, candidate: RowText
) -> Finding:
    """Say that one side has no label at all."""
    rows_zh = "参考" if lost is Side.REFERENCE else "被测"
    return Finding(
        id="data.ground_truth",
        rung=Rung.DATA,
        severity=Severity.WARNING,
        title=Text(
            f"every ground truth of the {lost.value} is empty ({num_rows} rows)",
            f"{rows_zh}的标准答案全部为空（{num_rows} 行）",
        ),
        reference="empty" if lost is Side.REFERENCE else "given",
        candidate="empty" if lost is Side.CANDIDATE else "given",
        evidence=(
            *_quotes([reference], Side.REFERENCE),
            *_quotes([candidate], Side.CANDIDATE),
        ),
        why=Text(
            "Rule rewards compare the response with the ground truth; with nothing to compare, "
            "right answers score as wrong ones.",
            "规则奖励把回复与标准答案比较；标准答案为空时，正确的回复也会被判为错误。",
        ),
        fix=Text(
            "Keep the label column when the data is prepared (verl: reward_model.ground_truth; "
            "MindSpeed-RL: labels in dataset_additional_keys).",
            "预处理数据时保留标签列（verl：reward_model.ground_truth；"
            "MindSpeed-RL：dataset_additional_keys 中的 labels）。",
        ),
        mechanism=Mechanism(Rung.REWARD, Strength.SEMANTIC),
    )


def with_cause(finding: Finding, cause: OrderCause | None) -> Finding:
    """Add why the order differs to a finding that says that it does."""
    if cause is None:
        return finding
    return replace(
        finding,
        title=Text(f"{finding.title.en}; {cause.what.en}", f"{finding.title.zh}；{cause.what.zh}"),
        why=finding.why if cause.is_hint else ORDER_WHY,
        evidence=(*cause.evidence, *finding.evidence),
        mechanism=finding.mechanism if cause.is_hint else _ACTS_ON_DATA,
    )


def _symptom(pair: PromptLengths, step: int) -> Symptom:
    """Say what lengths alone show: other rows, another template or another tokenizer can be why."""
    return Symptom(
        metric=pair.reference.name,
        rung=Rung.DATA,
        step=step,
        first_recorded_step=int(pair.steps[0]),
        noise_sized=False,
    )


def _quotes(rows: list[RowText], side: Side) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(source=row.source, side=side, line=row.line, key="prompt", text=quoted(row.prompt))
        for row in rows
    )


def _length_evidence(pair: PromptLengths, a: int, b: int) -> tuple[Evidence, ...]:
    sides = ((pair.reference, a, Side.REFERENCE), (pair.candidate, b, Side.CANDIDATE))
    return tuple(
        Evidence(
            source=series.source,
            side=side,
            line=int(series.lines[i]) or None,
            key=series.spelling,
            values=(int(series.steps[i]), float(series.values[i])),
        )
        for series, i, side in sides
    )
